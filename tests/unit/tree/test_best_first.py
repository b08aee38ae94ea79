"""Best-first by hand: order, ties, limits, odd values. Its equality with slow twins is in tests/property/tree."""

import math

import numpy as np
import pytest

from jetspec_engine.config import PLAIN, TreeConfig
from jetspec_engine.errors import ConfigError
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.best_first import build_best_first
from support.tree_cases import candidates_of, random_candidates

INF = math.inf
SMALL = [[-0.1, -2.5], [-0.2, -1.7], [-3.0, -3.5]]


def build(logprobs, **config):
    return build_best_first(99, candidates_of(logprobs), TreeConfig(**config)).validate()


def test_the_likeliest_prefix_comes_next():
    tree = build(SMALL, width=2, budget=6)
    # -0.1 | -0.3 (child) | -1.8 (its sibling) | -2.5 (the root's second child) | -2.7 (its child) | -3.3 next
    assert tree.tokens.tolist() == [99, 0, 10, 11, 1, 10]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 0, 4]
    assert tree.depths.tolist() == [0, 1, 2, 2, 1, 2]
    assert tree.logprobs.tolist() == pytest.approx([0.0, -0.1, -0.3, -1.8, -2.5, -2.7])


def test_ties_go_to_the_shallower_then_to_the_elder_parents_child_then_to_the_lower_rank():
    tree = build([[0.0, 0.0], [0.0, 0.0]], width=2, budget=7)
    assert tree.tokens.tolist() == [99, 0, 1, 10, 11, 10, 11]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]


def test_at_a_tie_the_likelier_parent_counts_not_the_lower_ranks():
    # Depth 3: (0, 1, 0) = 0 - 5 + 0 and (1, 0, 1) = -1 + 0 - 4 tie at -5; the second has the likelier parent.
    tree = build([[0.0, -1.0], [0.0, -5.0], [0.0, -4.0]], width=2, budget=15)
    ranks = []
    for node in range(15):
        if tree.depths[node] == 3 and tree.logprobs[node] == -5.0:
            middle = tree.parents[node]
            ranks.append([int(tree.tokens[n]) % 10 for n in (tree.parents[middle], middle, node)])
    assert ranks == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("budget", [None, 16, 64])
def test_case_17_width_1_is_the_chain_whatever_the_budget(budget):
    candidates = random_candidates(0)
    tree = build_best_first(99, candidates, TreeConfig(width=1, budget=budget))
    assert tree.num_nodes == 16
    assert tree.is_chain
    assert tree.tokens.tolist() == [99, *candidates.tokens[:, 0]]
    assert tree.logprobs[1:] == pytest.approx(np.cumsum(candidates.logprobs[:, 0], dtype=np.float64))


def test_case_17_width_1_with_a_budget_below_the_chain_is_a_shorter_chain():
    tree = build_best_first(99, random_candidates(0), TreeConfig(width=1, budget=5))
    assert tree.num_nodes == 5
    assert tree.is_chain


@pytest.mark.parametrize("config", [PLAIN, TreeConfig(width=8, budget=1), TreeConfig(budget=1, keep_spine=True)])
def test_case_17_budget_1_is_the_root_alone(config):
    tree = build_best_first(99, random_candidates(0), config)
    assert tree.tokens.tolist() == [99]


@pytest.mark.parametrize("width", [2, 4, 7, 8])
def test_R25_budget_unset_at_any_width_means_the_rows_of_the_chain(width):
    assert build_best_first(99, random_candidates(0), TreeConfig(width=width, budget=None)).num_nodes == 16


@pytest.mark.parametrize("budget", [2, 8, 15])
def test_case_17_a_budget_below_the_chain_is_kept(budget):
    assert build_best_first(99, random_candidates(0), TreeConfig(width=8, budget=budget)).num_nodes == budget


def test_the_width_asked_for_is_cut_to_the_width_given():
    assert build([[-0.1, -2.5]], width=8, budget=64).num_nodes == 3


def test_the_width_given_is_cut_to_the_width_asked_for():
    assert build([[-0.1, -0.2, -0.3, -0.4]], width=2, budget=64).tokens.tolist() == [99, 0, 1]


@pytest.mark.parametrize("unusable", [-INF, math.nan])
def test_R39_an_unusable_candidate_is_never_drafted(unusable):
    tree = build([[-0.1, unusable], [unusable, -0.3]], width=2, budget=64)
    assert tree.tokens.tolist() == [99, 0, 11]


@pytest.mark.parametrize("unusable", [-INF, math.nan])
def test_case_14_a_depth_without_candidates_ends_the_branches_there(unusable):
    logprobs = [[-0.1, -0.2], [unusable, unusable], [-0.1, -0.2]]
    for keep_spine in (False, True):
        tree = build(logprobs, width=2, budget=64, keep_spine=keep_spine)
        assert tree.tokens.tolist() == [99, 0, 1]
    assert build([[unusable]], width=2, budget=64).tokens.tolist() == [99]


def test_R39_impossible_log_probabilities_count_as_certain():
    tree = build([[INF, 0.5], [0.25, -1.0]], width=2, budget=4)
    assert tree.logprobs.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_R39_huge_negative_sums_stay_finite():
    tree = build([[-3e38, -3.4e38]] * 3, width=2, budget=15)
    assert tree.num_nodes == 15
    assert np.isfinite(tree.logprobs).all()


def test_candidates_out_of_order_are_sorted():
    tree = build([[-2.0, math.nan, -1.0]], width=2, budget=3)
    assert tree.tokens.tolist() == [99, 2, 0]


@pytest.mark.parametrize(
    ("tokens", "logprobs"), [((2, 3), (2, 4)), ((6,), (6,)), ((1, 2, 3), (1, 2, 3)), ((3, 2), (2, 3))]
)
def test_R39_candidates_of_a_wrong_shape_are_refused(tokens, logprobs):
    candidates = Candidates(tokens=np.zeros(tokens, dtype=np.int64), logprobs=np.zeros(logprobs, dtype=np.float32))
    with pytest.raises(ConfigError, match="candidates: shapes"):
        build_best_first(99, candidates, TreeConfig())


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_no_candidates_at_all_leave_the_root(shape):
    candidates = Candidates(tokens=np.zeros(shape, dtype=np.int64), logprobs=np.zeros(shape, dtype=np.float32))
    for keep_spine in (False, True):
        config = TreeConfig(width=8, budget=64, keep_spine=keep_spine)
        assert build_best_first(99, candidates, config).tokens.tolist() == [99]


def flat_then_doubtful():
    """Depth 1 is a coin toss among 8 tokens and depths after it are certain: best-first at B = 9 stays shallow."""
    return [[-2.0 - 0.01 * k for k in range(8)]] + [[-2.5] + [-9.0] * 7] * 14


def test_R10_without_the_spine_a_small_budget_may_not_reach_deep():
    tree = build(flat_then_doubtful(), width=8, budget=9)
    assert tree.max_depth == 1


def test_R10_the_spine_is_kept_whole_and_takes_its_part_of_the_budget():
    tree = build(flat_then_doubtful(), width=8, budget=19, keep_spine=True)
    spine = [0]
    for node in range(1, 19):
        if tree.parents[node] == spine[-1] and tree.tokens[node] % 10 == 0:
            spine.append(node)
    assert len(spine) == 16
    assert sorted(set(range(19)) - set(spine)) == [2, 3, 4]
    assert tree.tokens[[2, 3, 4]].tolist() == [1, 2, 3]


def test_R10_a_spine_leaves_no_branch_at_the_chains_budget():
    assert build(flat_then_doubtful(), width=8, budget=16, keep_spine=True).is_chain
    assert build(flat_then_doubtful(), width=8, budget=5, keep_spine=True).is_chain
