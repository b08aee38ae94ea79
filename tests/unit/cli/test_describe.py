"""What a server says of its tree, in words."""

import pytest

from jetspec_cli.serving.describe import describe
from jetspec_engine.config import LINEAR, PLAIN, TreeConfig


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (TreeConfig(width=8, budget=8, keep_spine=True), "W8 B8 spine of depth 7"),
        (TreeConfig(width=8, budget=16, keep_spine=True), "W8 B16 spine of depth 15"),
        (TreeConfig(width=8, budget=64, keep_spine=True), "W8 B64 spine of depth 15"),
        (TreeConfig(width=8, budget=64), "W8 B64 of depth 15 at most"),
        (TreeConfig(width=8, budget=8), "W8 B8 of depth 7 at most"),
        (LINEAR, "W1 B=D+1 of depth 15"),
        (TreeConfig(width=1, budget=5), "W1 B5 of depth 4"),
        (PLAIN, "W1 B1 of depth 0"),
    ],
    ids=str,
)
def test_a_tree_is_as_deep_as_its_budget_reaches(tree: TreeConfig, said: str) -> None:
    (line,) = [
        line for line in describe({"tree": tree.to_mapping(), "draft_depth": 15}, "u") if line.startswith("tree ")
    ]
    assert line.split(maxsplit=1)[1] == said


def test_of_an_unknown_depth_nothing_is_claimed() -> None:
    assert f"{'tree':<17} W8 B16 of depth ?" in describe({"tree": TreeConfig().to_mapping()}, "u")
