"""Candidates, trees and targets for tests of the tree core: by hand, at random, and as Hypothesis strategies."""

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.record import DraftTree

THOROUGH = settings(derandomize=True, deadline=None, max_examples=200)

# Few values, so that sums tie; and every odd one.
TIED = (0.0, -0.5, -1.0, -1.5)
ODD = (math.nan, -math.inf, math.inf, 0.25, -0.0, -1e-45, -3e38, -1e30)


def candidates_of(logprobs, tokens=None) -> Candidates:
    """Candidates from nested lists; by default token 10 * depth + rank."""
    values = np.array(logprobs, dtype=np.float32)
    if tokens is None:
        tokens = np.arange(values.shape[0])[:, None] * 10 + np.arange(values.shape[1])
    return Candidates(tokens=np.array(tokens, dtype=np.int64), logprobs=values)


def random_candidates(seed: int, depth: int = 15, width: int = 8, spread: float = 3.0) -> Candidates:
    """Candidates as a head would give them: log-softmax of random logits, sorted."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(depth, 200)) * spread
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = np.argsort(-logprobs, axis=1, kind="stable")[:, :width]
    values = np.take_along_axis(logprobs, tokens, axis=1)
    return Candidates(tokens=tokens, logprobs=values.astype(np.float32))


@st.composite
def candidate_sets(draw, max_depth: int = 4, max_width: int = 4) -> Candidates:
    """Ordered or not, tied or not, odd or not; tokens distinct within a depth."""
    depth, width = draw(st.integers(1, max_depth)), draw(st.integers(1, max_width))
    values = draw(
        st.sampled_from(
            (
                st.sampled_from(TIED),
                st.sampled_from(TIED + ODD),
                st.floats(-20.0, 0.0, width=32),
                st.floats(width=32),
            )
        )
    )
    rows = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=depth, max_size=depth))
    if draw(st.booleans()):
        rows = [sorted(row, key=lambda value: math.inf if math.isnan(value) else -value) for row in rows]
    # A small vocabulary shared by all depths: one token may stand at several depths, as in real text.
    tokens = [draw(st.permutations(range(max_width + 1)))[:width] for _ in range(depth)]
    return candidates_of(rows, tokens)


@st.composite
def tree_configs(draw, rule: str = "best_first", max_width: int = 5, max_budget: int = 24) -> TreeConfig:
    """Any width, budget (or none) and spine option."""
    return TreeConfig(
        rule=rule,
        width=draw(st.integers(1, max_width)),
        budget=draw(st.one_of(st.none(), st.integers(1, max_budget))),
        keep_spine=draw(st.booleans()),
        beta=draw(st.sampled_from((0.0, 0.5, 1.0, 2.0, -3.0, 1e6))),
        g0=draw(st.sampled_from((0.0, 1.0, 0.25, -1e6, 1e6))),
    )


@st.composite
def random_trees(draw, max_nodes: int = 20, num_tokens: int = 6) -> DraftTree:
    """A valid tree of any shape; siblings have distinct tokens, and all log-probabilities are 0."""
    count = draw(st.integers(1, max_nodes))
    tokens, parents, depths = [draw(st.integers(0, num_tokens - 1))], [-1], [0]
    for _ in range(count - 1):
        parent = draw(st.integers(max(0, len(tokens) - 4), len(tokens) - 1))
        taken = {tokens[i] for i in range(len(tokens)) if parents[i] == parent}
        free = [token for token in range(num_tokens) if token not in taken]
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return tree_of(tokens, parents, depths)


def tree_of(tokens, parents, depths, logprobs=None) -> DraftTree:
    """A DraftTree from lists, not validated."""
    totals = np.zeros(len(tokens)) if logprobs is None else logprobs
    return DraftTree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(depths, dtype=np.int64),
        np.array(totals, dtype=np.float32),
    )


def assert_same_tree(tree: DraftTree, expected: DraftTree) -> None:
    """Node for node, bit for bit."""
    assert tree.tokens.tolist() == expected.tokens.tolist()
    assert tree.parents.tolist() == expected.parents.tolist()
    assert tree.depths.tolist() == expected.depths.tolist()
    assert tree.logprobs.tobytes() == expected.logprobs.tobytes()
