"""An arm against its baseline, and what is said of it, from rows whose ratios were worked out by hand."""

import pytest

from jetspec_cli.bench import speed, verdicts
from jetspec_cli.bench.summary import derive_against_plain

TREE = {"rounds": 3, "round_s": 0.2, "e2e_s": 1.0}
LINEAR = {"rounds": 4, "round_s": 0.1, "e2e_s": 2.0}


def row(arm: str, prompt_id: str, *, rounds: int, round_s: float, e2e_s: float, text_class: str = "code") -> dict:
    timed = {"num": rounds, "median": round_s, "min": round_s, "max": round_s}
    return {
        "pairing": "W4 B16", "repeat": 0, "block": prompt_id, "prompt_id": prompt_id, "class": text_class, "arm": arm,
        "num_emitted_tokens": 12, "num_rounds": rounds, "round_s": timed, "started_s": 0.0, "e2e_s": e2e_s,
    }  # fmt: skip


def rows(*, slow: dict | None = None) -> list[dict]:
    """Three prompts on both arms; the last one, of another class, may go otherwise on the tree."""
    found = [row("tree", name, **TREE) for name in "ab"] + [row("linear", name, **LINEAR) for name in "ab"]
    prose = {"text_class": "prose"}
    return [*found, row("tree", "c", **(slow or TREE), **prose), row("linear", "c", **LINEAR, **prose)]


def test_R16_accept_ratio_step_cost_ratio_and_speedup_are_the_arms_over_its_baselines():
    found = speed.paired(rows(), "tree", "linear", is_one_by_one=True)
    assert found["accept_ratio"] == pytest.approx(4 / 3)
    assert found["step_cost_ratio"] == pytest.approx(2.0)
    assert found["speedup"] == {"value": 2.0, "low": 2.0, "high": 2.0, "num_units": 3}
    assert found["verdict"] == speed.PAYS
    turned = speed.paired(rows(), "linear", "tree", is_one_by_one=True)
    assert (turned["accept_ratio"], turned["speedup"]["value"]) == (pytest.approx(3 / 4), 0.5)
    assert turned["verdict"] == speed.DOES_NOT_PAY


def test_R16_a_speedup_whose_interval_holds_one_is_unclear():
    found = speed.paired(rows(slow={**TREE, "e2e_s": 3.5}), "tree", "linear", is_one_by_one=True)
    assert found["speedup"]["value"] == pytest.approx(6 / 5.5)
    assert found["speedup"]["low"] < 1 < found["speedup"]["high"]
    assert found["verdict"] == speed.UNCLEAR
    assert found["speedup_by_class"] == {"code": pytest.approx(2.0), "prose": pytest.approx(2 / 3.5)}


def test_R16_two_units_are_too_few_for_a_verdict():
    two = [one for one in rows() if one["prompt_id"] != "c"]
    assert speed.paired(two, "tree", "linear", is_one_by_one=True)["verdict"] == speed.UNCLEAR


def test_a_prompt_that_one_arm_did_not_answer_counts_for_neither():
    lone = row("tree", "d", rounds=1, round_s=9.0, e2e_s=90.0)
    assert speed.paired([*rows(), lone], "tree", "linear", is_one_by_one=True) == speed.paired(
        rows(), "tree", "linear", is_one_by_one=True
    )
    assert speed.paired([lone], "tree", "linear", is_one_by_one=True) is None


def cell(label: str, value: float, by_class: dict, *, role: str = "tree", ratios=(1.5, 1.2), outcome="passed") -> dict:
    bounds = {"value": value, "low": value - 0.1, "high": value + 0.1, "num_units": 3}
    against = {"accept_ratio": ratios[0], "step_cost_ratio": ratios[1], "speedup": bounds}
    against |= {"verdict": speed.verdict(bounds), "speedup_by_class": by_class}
    return {"label": label, "role": role, "gate": {"outcome": outcome}, "against": {"linear": against}}


def test_R03_the_best_cell_is_named_overall_and_by_class_and_what_pays_is_counted():
    cells = [
        cell("W4 B8", 1.3, {"code": 1.4, "prose": 1.0}),
        cell("W4 B64", 0.7, {"code": 1.6, "prose": 0.5}),
        cell("W8 B16", 1.05, {"code": 1.1, "prose": 1.1}),
    ]
    best = verdicts.best_cells(cells)
    assert {name: found["label"] for name, found in best.items()} == {
        "overall": "W4 B8",
        "code": "W4 B64",
        "prose": "W8 B16",
    }
    assert best["overall"]["verdict"] == speed.PAYS
    assert verdicts.statement(cells) == (
        "1 of 3 tree cells pay; the fastest is W4 B8: accept ratio 1.500 > step cost ratio 1.200; measured speedup "
        "over linear 1.300 [1.200, 1.400]: pays"
    )


def test_R16_a_tree_below_its_break_even_is_said_to_be():
    sentence = verdicts.break_even(cell("W4 B64", 0.8, {}, ratios=(1.2, 1.5)))
    assert sentence.startswith("W4 B64: accept ratio 1.200 <= step cost ratio 1.500; measured speedup over linear 0.8")
    assert sentence.endswith(": does not pay")


def test_a_speed_against_plain_is_derived_through_linear():
    plain = cell("plain", 0.5, {}, role="plain")
    tree, linear = cell("W4 B8", 1.3, {}), {**cell("linear", 1.0, {}, role="linear"), "against": {}}
    for one in (tree, linear):
        derive_against_plain(one, plain)
    assert tree["against"]["plain"]["speedup"]["value"] == pytest.approx(2.6)
    assert linear["against"]["plain"]["speedup"]["value"] == pytest.approx(2.0)
    assert tree["against"]["plain"]["is_derived"]
