"""Step costs as documents that ``jetspec matrix`` renders: python -m tests.measure.steps_matrix steps.json --out DIR.

Reads what ``sglang_steps`` wrote and writes one document of kind ``steps`` for each attention backend: a cell for every
arm with its time a round, its step cost ratio to the fastest stock linear path, and the tok/s that follow at stated
accept lengths. Derived, not measured: a round is taken to cost the same however many of its drafts are accepted.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.measure.common import write

from jetspec_cli.bench.document import SCHEMA_VERSION
from jetspec_cli.bench.summary import NOT_GATED, SPEED_KEYS
from jetspec_engine import __version__

LENGTHS = (3.0, 4.0, 5.0, 6.0, 8.0)
# Labels of arms that are no trees of a width above 1.
LABELS = {"W1": "W1 on the tree server", "width1": "a server of width 1"}


def documents(steps: Mapping[str, Any], lengths: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Return the documents by attention backend, of every backend that has trees.

    Args:
        steps: what ``sglang_steps`` wrote; arms that failed are left out.
        lengths: accept lengths to derive tok/s for; plain decoding has 1 only.
    """
    arms = [arm for wave in steps["waves"] for arm in wave["arms"] if "ms_a_round" in arm]
    fastest = min((arm["ms_a_round"] for arm in arms if arm["kind"] == "linear"), default=None)
    backends = dict.fromkeys(_backend(arm) for arm in arms if arm["kind"] == "tree")
    return {
        backend: _document(
            steps, backend, [_cell(arm, fastest, lengths) for arm in arms if _backend(arm) == backend]
        )
        for backend in backends
    }  # fmt: skip


def _backend(arm: Mapping[str, Any]) -> str:
    return str(arm["arm"]).split()[0].split("-")[1]


def _cell(arm: Mapping[str, Any], fastest: float | None, lengths: Sequence[float]) -> dict[str, Any]:
    seconds = [value / 1e3 for value in arm["ms_a_round_by_turn"]]
    median = arm["ms_a_round"] / 1e3
    is_tree = arm["kind"] == "tree"
    label = arm["arm"].split(" ", 1)[1] if is_tree else arm["kind"]
    label = LABELS.get(label, label)
    against = {
        "speedup": None, "accept_ratio": None, "verdict": "", "speedup_by_class": {},
        "step_cost_ratio": arm["ms_a_round"] / fastest if fastest else None, "is_derived": False,
    }  # fmt: skip
    return {
        "label": label,
        "role": "linear" if arm["kind"] == "width1" else arm["kind"],
        "tree": arm["tree"],
        "num_requests": arm["turns"],
        "num_failed": 0,
        "gate": {"outcome": NOT_GATED, "verdicts": {}, "findings": []},
        "accept_length": None, "accept_length_by_class": {}, "accept_rate": None,
        "accept_histogram": [], "accept_histogram_by_class": {},
        **dict.fromkeys(SPEED_KEYS),
        "round_s": {"num": arm["turns"], "median": median, "min": min(seconds), "max": max(seconds)},
        "tok_s_at": {f"{length:g}": length / median for length in ((1.0,) if arm["kind"] == "plain" else lengths)},
        "against": {} if arm["kind"] == "plain" else {"linear": against},
        "by_prompt": {},
    }  # fmt: skip


def _document(steps: Mapping[str, Any], backend: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    info = {
        "engine": "sglang", "attention": backend, "target": f"the shape of {steps.get('shape', 'qwen3-8b')}",
        "head": "a DFlash head of dummy weights", "dtype": "bfloat16", "device": "cuda",
    }  # fmt: skip
    versions = steps["environment"]["versions"]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "steps",
        "tool": {"name": "jetspec", "version": __version__},
        "command": ["python", "-m", "tests.measure.steps_matrix"],
        "started_at": steps["date"],
        "outcome": "done",
        "configuration": {
            "prompts": [f"{steps['prompt_tokens']} tokens"], "concurrency": 1, "max_new_tokens": steps["new_tokens"],
            "forced_accept_length": steps["forced_accept_length"],
        },
        "environment": {
            "gpus": steps["environment"]["gpus"], "versions": {**versions, "jetspec": __version__},
            "commit": steps["commit"],
        },
        "servers": [{"role": "measured", "kind": "sglang", "url": None, "info": info}],
        "notes": [
            "step costs only: dummy weights, acceptance forced to"
            f" {steps['forced_accept_length']}; tok/s are derived, the prefill left out; nothing was gated; a tree pays"
            " where its accept ratio to the linear path is above its step cost ratio"
        ],
        "summary": {"num_requests": len(cells), "num_failed": 0, "statement": "", "best": {}},
        "cells": cells,
        "failures": [],
    }  # fmt: skip


def main() -> None:
    """Read, convert and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("steps", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--lengths", default=",".join(f"{length:g}" for length in LENGTHS))
    options = parser.parse_args()
    steps = json.loads(options.steps.read_text(encoding="utf-8"))
    for backend, document in documents(steps, [float(word) for word in options.lengths.split(",")]).items():
        write(options.out / f"steps-{backend}.json", document)


if __name__ == "__main__":
    main()
