"""Which trees a started server can be switched to, and how they travel as numbers."""

import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.args import TreeSettings
from jetspec_engine.sglang_backend.tree_switch import (
    TreeSwitch,
    captured_rows,
    check_tree,
    tree_from_numbers,
    tree_numbers,
)

SETTINGS = TreeSettings(tree=TreeConfig(width=4, budget=16), max_width=8, budgets=(4, 16, 64))
TREES = [
    LINEAR, PLAIN, TreeConfig(width=8, budget=64), TreeConfig(width=2, budget=4, keep_spine=True),
    TreeConfig(width=7, budget=33, rule="top2gap", beta=2.0, g0=0.5),
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_R17_a_tree_survives_the_control_message(tree):
    numbers = tree_numbers(tree)
    assert all(isinstance(value, (int, float)) for value in numbers.values())
    assert tree_from_numbers(numbers) == tree


def test_a_message_that_lacks_a_number_or_names_no_rule_is_refused():
    numbers = tree_numbers(LINEAR)
    for broken in ({**numbers, "jetspec_rule": 9}, {"jetspec_width": 1}):
        with pytest.raises(ConfigError, match="tree: "):
            tree_from_numbers(broken)


@pytest.mark.parametrize(("budget", "rows"), [(2, 4), (4, 4), (5, 8), (16, 16), (17, 64), (64, 64)])
def test_the_least_captured_number_of_rows_is_verified(budget, rows):
    switch = TreeSwitch(SETTINGS, depth=7)
    assert switch.captured == (4, 8, 16, 64)
    switch.set(TreeConfig(width=4, budget=budget))
    assert (switch.rows, switch.num_nodes) == (rows, budget)


def test_a_server_that_stays_linear_captures_the_chain_only():
    settings = TreeSettings(tree=LINEAR, max_width=1, budgets=())
    assert captured_rows(settings, 15) == (16,)


@pytest.mark.parametrize("tree", [TreeConfig(width=9, budget=16), TreeConfig(width=4, budget=65)])
def test_what_was_not_captured_is_refused_and_changes_nothing(tree):
    switch = TreeSwitch(SETTINGS, depth=7)
    with pytest.raises(ConfigError, match=r"tree\.(width|budget)"):
        switch.set(tree)
    assert switch.tree == SETTINGS.tree
    check_tree(LINEAR, SETTINGS, 7)
