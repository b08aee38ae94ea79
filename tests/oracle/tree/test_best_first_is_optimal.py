"""Best-first against every tree there is: none of its size is worth more."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.tree.best_first import build_best_first
from jetspec_engine.tree.expected import expected_accept_length
from jetspec_engine.tree.published import build_accum_logp, build_top2gap
from jetspec_engine.tree.reference import usable_reference
from support.tree_cases import candidate_sets, random_candidates


def best_worth(candidates, config) -> float:
    """Largest summed prefix probability of any set of prefixes that is closed under taking the parent."""
    depths = usable_reference(candidates, config.width)
    worth = {(): 1.0}
    for depth in range(1, len(depths) + 1):
        for ranks in product(*[range(len(row)) for row in depths[:depth]]):
            worth[ranks] = math.exp(sum(depths[d][rank][1] for d, rank in enumerate(ranks)))
    budget = config.resolve_budget(len(depths))

    def extend(kept: frozenset, value: float, frontier: tuple) -> float:
        """Best value from here; each prefix of the frontier is either taken now or never."""
        best = value
        if len(kept) < budget:
            for place, prefix in enumerate(frontier):
                children = tuple(child for child in worth if child and child[:-1] == prefix)
                taken = extend(kept | {prefix}, value + worth[prefix], frontier[place + 1 :] + children)
                best = max(best, taken)
        return best

    roots = tuple(child for child in worth if len(child) == 1)
    return extend(frozenset({()}), 1.0, roots)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(candidate_sets(max_depth=3, max_width=2), st.integers(1, 6))
def test_R10_no_tree_of_the_budget_is_worth_more(candidates, budget):
    config = TreeConfig(width=2, budget=budget)
    tree = build_best_first(0, candidates, config)
    assert expected_accept_length(tree) == pytest.approx(best_worth(candidates, config), rel=1e-5)


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("budget", [16, 17, 32, 64])
@pytest.mark.parametrize("keep_spine", [False, True])
def test_R10_expected_accept_is_never_below_the_chain(spread, budget, keep_spine):
    for seed in range(10):
        candidates = random_candidates(seed, spread=spread)
        chain = expected_accept_length(build_best_first(0, candidates, LINEAR))
        tree = build_best_first(0, candidates, TreeConfig(width=8, budget=budget, keep_spine=keep_spine))
        assert expected_accept_length(tree) >= chain


def test_R10_the_published_rules_can_fall_below_the_chain():
    """The partner that must fail: 'at least the chain' is a promise of best-first, not of any tree."""
    candidates = random_candidates(3, spread=9.0)
    chain = expected_accept_length(build_best_first(0, candidates, LINEAR))
    config = TreeConfig(rule="accum_logp", width=8, budget=16)
    assert expected_accept_length(build_accum_logp(0, candidates, config)) < chain
    for seed in range(10):
        candidates = random_candidates(seed)
        best = expected_accept_length(build_best_first(0, candidates, TreeConfig(width=8, budget=16)))
        published = build_top2gap(0, candidates, TreeConfig(rule="top2gap", width=8, budget=16))
        assert expected_accept_length(published) <= best
