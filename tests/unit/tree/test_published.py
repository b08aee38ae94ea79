"""The published rules by hand: the caps table, rounding, shapes, the spine."""

import math

import pytest

from jetspec_engine.config import TREE_RULES, TreeConfig
from jetspec_engine.tree.published import build_accum_logp, build_top2gap, gap_cap
from jetspec_engine.tree.rules import BUILDERS
from support.tree_cases import candidates_of, random_candidates


@pytest.mark.parametrize(
    ("gap", "cap"), [(0.0, 6), (0.59, 5), (1.0, 4), (1.6, 3), (2.0, 2), (2.46, 2), (2.47, 1), (2.5, 1), (9.0, 1)]
)
def test_R10_caps_at_width_8_beta_1_g0_1(gap, cap):
    assert gap_cap(gap, 8, 1.0, 1.0) == cap


def test_R10_halves_round_to_even():
    # At gap == g0 the sigmoid is exactly a half: 2.5 -> 2, 3.5 -> 4, 0.5 -> 0 -> at least 1.
    assert [gap_cap(1.0, width, 1.0, 1.0) for width in (5, 7, 1, 3)] == [2, 4, 1, 2]


@pytest.mark.parametrize("beta", [1.0, 0.0, -1.0, 1e6, -1e6])
@pytest.mark.parametrize("gap", [math.inf, math.nan])
def test_R39_an_infinite_or_missing_gap_gives_one_child(gap, beta):
    assert gap_cap(gap, 8, beta, 1.0) == 1


@pytest.mark.parametrize(("beta", "g0", "cap"), [(1e6, 1e6, 8), (1e6, -1e6, 1), (-1e6, 1e6, 1), (-1e6, -1e6, 8)])
def test_R39_extreme_settings_do_not_overflow(beta, g0, cap):
    assert gap_cap(0.5, 8, beta, g0) == cap
    assert 1 <= gap_cap(3e38, 8, beta, g0) <= 8


def test_beta_0_keeps_half_of_the_width_at_every_gap():
    assert [gap_cap(gap, 8, 0.0, 1.0) for gap in (0.0, 5.0, 1e30)] == [4, 4, 4]


def test_R10_accum_logp_at_width_8_budget_16_never_passes_depth_2():
    for seed in range(20):
        tree = build_accum_logp(0, random_candidates(seed), TreeConfig(rule="accum_logp", width=8, budget=16))
        assert tree.num_nodes == 16
        assert tree.max_depth <= 2


def test_R10_top2gap_at_gap_0_59_keeps_two_of_the_chains_tokens():
    """A budget of the chain's size does not keep the linear path: its fan-out is spent near the root."""
    second, rest = math.log(0.3) - 0.59, math.log(0.01)
    row = [math.log(0.3), second, second - 0.3, second - 0.6, second - 0.9, rest, rest, rest]
    tree = build_top2gap(0, candidates_of([row] * 15), TreeConfig(rule="top2gap", width=8, budget=16))
    spine, node = 0, 0
    while node is not None:
        node = next((k for k in range(16) if tree.parents[k] == node), None)
        spine += node is not None
    assert spine == 2


def test_children_come_all_at_once_and_the_budget_cuts_the_last_ones():
    logprobs = [[-0.1, -0.2, -0.3], [-5.0, -5.1, -5.2]]
    tree = build_accum_logp(99, candidates_of(logprobs), TreeConfig(rule="accum_logp", width=3, budget=6)).validate()
    assert tree.tokens.tolist() == [99, 0, 1, 2, 10, 11]
    assert tree.parents.tolist() == [-1, 0, 0, 0, 1, 1]


def test_top2gap_caps_by_the_gap_of_the_childrens_depth():
    logprobs = [[-0.5, -5.0, -5.1, -5.2], [-1.0, -1.1, -1.2, -1.3]]
    config = TreeConfig(rule="top2gap", width=4, budget=16, beta=1.0, g0=1.0)
    tree = build_top2gap(99, candidates_of(logprobs), config).validate()
    assert tree.tokens.tolist() == [99, 0, 10, 11, 12]


@pytest.mark.parametrize("build", [build_top2gap, build_accum_logp])
def test_R10_the_spine_option_works_here_too(build):
    for budget in (8, 16, 20, 64):
        config = TreeConfig(rule=build.__name__.removeprefix("build_"), width=8, budget=budget, keep_spine=True)
        candidates = random_candidates(budget)
        tree = build(0, candidates, config).validate()
        assert tree.num_nodes <= budget
        assert tree.max_depth == min(15, budget - 1)


@pytest.mark.parametrize("build", [build_top2gap, build_accum_logp])
def test_case_17_width_1_is_the_chain(build):
    for budget, expected in ((None, 16), (64, 16), (4, 4), (1, 1)):
        rule = build.__name__.removeprefix("build_")
        tree = build(0, random_candidates(1), TreeConfig(rule=rule, width=1, budget=budget))
        assert tree.is_chain
        assert tree.num_nodes == expected


def test_every_rule_has_a_builder():
    assert tuple(BUILDERS) == TREE_RULES
