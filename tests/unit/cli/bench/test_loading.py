"""Results of several runs put together: what is one configuration, and which of two runs of it is shown."""

from typing import Any

from jetspec_cli.bench.loading import merge


def cell(accept_length: float, *, outcome: str = "passed", label: str = "W4 B16") -> dict[str, Any]:
    return {"label": label, "role": "tree", "accept_length": accept_length, "gate": {"outcome": outcome}}


def document(*cells: dict[str, Any], concurrency: int = 1, prompts: str = "p.jsonl", **info: Any) -> dict[str, Any]:
    server = {"target": "t", "head": "h", "engine": "embedded", "dtype": "float32", "device": "cpu", **info}
    asked = {"prompts": [prompts], "concurrency": concurrency, "dtype": "auto"}
    envelope = {"configuration": asked, "environment": {"processor": "a CPU"}}
    return {"servers": [{"info": server}], **envelope, "cells": list(cells)}


def lengths(*documents: dict[str, Any]) -> list[float]:
    return [found["accept_length"] for found in merge(documents)[0]]


def test_case_31_other_settings_are_other_cells():
    others = [
        document(cell(2.0), dtype="bfloat16"),
        document(cell(3.0), target="u"),
        document(cell(4.0), head="i"),
        document(cell(5.0), device="cuda"),
        document(cell(6.0), engine="sglang"),
        document(cell(7.0), concurrency=4),
        document(cell(8.0), prompts="q.jsonl"),
        document(cell(9.0, label="W8 B16")),
    ]
    assert lengths(document(cell(1.0)), *others) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert lengths(document(cell(1.0), engine="sglang", attention="fa3"), others[4]) == [1.0, 6.0]


def test_a_new_driver_is_no_other_machine():
    runs = [document(cell(length), device="cuda") for length in (1.0, 2.0, 3.0)]
    for run, gpu in zip(runs, ("H200, 1 MiB, driver 1", "H200, 1 MiB, driver 2", "A100, 1 MiB, driver 2"), strict=True):
        run["environment"]["gpus"] = [gpu]
    cells, _ = merge(runs)
    assert [(found["accept_length"], found["setting"]["details"]) for found in cells] == [(2.0, "H200"), (3.0, "A100")]


def test_of_equal_cells_the_latest_counts_and_that_is_said():
    cells, notes = merge([document(cell(1.0)), document(cell(2.0))])
    assert [found["accept_length"] for found in cells] == [2.0]
    assert notes == ["W4 B16: measured 2 times, the latest is shown"]


def test_what_was_measured_is_never_replaced_by_what_was_predicted():
    predicted = document(cell(2.0, outcome="predicted"))
    assert lengths(document(cell(1.0)), predicted) == [1.0]
    assert lengths(predicted, document(cell(1.0))) == [1.0]
    assert lengths(predicted, document(cell(3.0, outcome="predicted"))) == [3.0]
