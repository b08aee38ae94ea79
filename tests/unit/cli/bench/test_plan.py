"""What a measurement runs: arms in turn, and when the rows of one may stand in another (case 27)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jetspec_cli.bench.plan import BenchSpec, Load, pair
from jetspec_cli.prompts import Prompt
from jetspec_engine.config import TreeConfig

TREE = TreeConfig(width=4, budget=16)
PROMPTS = (Prompt(prompt_id="a", text="x", text_class="code"), Prompt(prompt_id="b", text="y"))
SPEC = BenchSpec(kind="bench", prompts=(Path("p.jsonl"),), pairings=(pair(TREE, ["linear"]),))
Asked = tuple[BenchSpec, tuple[Prompt, ...], str | None]


def with_prompt(**changes: object) -> Asked:
    return SPEC, (replace(PROMPTS[0], **changes), PROMPTS[1]), None


OTHERS: dict[str, Callable[[], Asked]] = {
    "another text": lambda: with_prompt(text="z"),
    "another class": lambda: with_prompt(text_class="math"),
    "another id": lambda: with_prompt(prompt_id="c"),
    "another cap": lambda: with_prompt(max_new_tokens=9),
    "ids for a text": lambda: with_prompt(text=None, input_ids=(1,)),
    "one prompt less": lambda: (SPEC, PROMPTS[:1], None),
    "another order": lambda: (SPEC, PROMPTS[::-1], None),
    "another tree": lambda: (replace(SPEC, pairings=(pair(replace(TREE, budget=17), ["linear"]),)), PROMPTS, None),
    "another baseline": lambda: (replace(SPEC, pairings=(pair(TREE, ["plain"]),)), PROMPTS, None),
    "another load": lambda: (replace(SPEC, load=Load(repeat=1)), PROMPTS, None),
    "another kind": lambda: (replace(SPEC, kind="sweep"), PROMPTS, None),
    "another dtype": lambda: (replace(SPEC, dtype="float32"), PROMPTS, None),
    "another target": lambda: (replace(SPEC, server={"target": "t"}), PROMPTS, None),
    "a server of its own": lambda: (SPEC, PROMPTS, "http://h"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_case_27_rows_of_another_measurement_have_another_fingerprint(name: str) -> None:
    spec, prompts, url = OTHERS[name]()
    assert spec.fingerprint(prompts, url) != SPEC.fingerprint(PROMPTS, None)


def test_case_27_where_the_file_lies_and_whether_cells_are_replayed_change_no_row() -> None:
    moved = replace(SPEC, prompts=(Path("elsewhere/p.jsonl"),), replay=True)
    assert moved.fingerprint(PROMPTS, None) == SPEC.fingerprint(PROMPTS, None)


def test_every_block_begins_with_another_arm() -> None:
    spec = replace(SPEC, pairings=(pair(TREE, ["linear", "plain"]),), load=Load(repeat=3))
    blocks = list(spec.blocks(PROMPTS))
    assert [(block.repeat, block.prompts[0].prompt_id) for block in blocks] == [
        (repeat, name) for repeat in range(3) for name in "ab"
    ]
    orders = [tuple(arm.label for arm in block.arms_in_turn) for block in blocks]
    assert {order[0] for order in orders} == {"W4 B16", "linear", "plain"}
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
