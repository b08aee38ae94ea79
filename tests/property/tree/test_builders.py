"""Every builder equals its slow twin on every input, and keeps its promises."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.batched import build_best_first_batched
from jetspec_engine.tree.best_first import build_best_first
from jetspec_engine.tree.record import DraftTree
from jetspec_engine.tree.reference import best_first_reference, published_reference
from jetspec_engine.tree.rules import BUILDERS
from support.tree_cases import (
    THOROUGH,
    assert_same_tree,
    candidate_sets,
    candidates_of,
    random_candidates,
    tree_configs,
)

ANCHOR = 7
MAX_NODES = 24


def unpad(batch, row: int) -> DraftTree:
    """One tree of a batch as a DraftTree, and a check of its padding."""
    count = int(batch.num_nodes[row])
    assert batch.is_valid[row].tolist() == [node < count for node in range(batch.tokens.shape[1])]
    assert (batch.tokens[row, count:] == 0).all()
    assert (batch.parents[row, count:] == -1).all()
    assert (batch.depths[row, count:] == 0).all()
    assert (batch.logprobs[row, count:] == -torch.inf).all()
    fields = (batch.tokens, batch.parents, batch.depths, batch.logprobs)
    return DraftTree(*(field[row, :count].numpy() for field in fields))


@THOROUGH
@given(candidate_sets(), tree_configs())
def test_R10_heap_equals_reference(candidates, config):
    assert_same_tree(build_best_first(ANCHOR, candidates, config), best_first_reference(ANCHOR, candidates, config))


@THOROUGH
@given(st.lists(st.tuples(candidate_sets(), tree_configs()), min_size=1, max_size=3))
def test_R10_batched_equals_heap(cases):
    """One batch of different requests, each with its own width, budget and spine option."""
    depth = max(candidates.tokens.shape[0] for candidates, _ in cases)
    width = max(candidates.tokens.shape[1] for candidates, _ in cases)
    tokens = torch.zeros(len(cases), depth, width, dtype=torch.int64)
    logprobs = torch.full((len(cases), depth, width), -torch.inf)
    for row, (candidates, _) in enumerate(cases):
        d, w = candidates.tokens.shape
        tokens[row, :d, :w] = torch.from_numpy(candidates.tokens)
        logprobs[row, :d, :w] = torch.from_numpy(candidates.logprobs)
    batch = build_best_first_batched(
        torch.full((len(cases),), ANCHOR),
        tokens,
        logprobs,
        num_nodes=MAX_NODES,
        budget=torch.tensor([config.resolve_budget(len(c.tokens)) for c, config in cases]),
        width=torch.tensor([config.width for _, config in cases]),
        keep_spine=torch.tensor([config.keep_spine for _, config in cases]),
    )
    for row, (candidates, config) in enumerate(cases):
        assert_same_tree(unpad(batch, row), build_best_first(ANCHOR, candidates, config))


@pytest.mark.parametrize("num_nodes", [16, 64, 128])
@pytest.mark.parametrize("keep_spine", [False, True])
def test_R10_batched_equals_heap_at_real_sizes(num_nodes, keep_spine):
    rng = np.random.default_rng(num_nodes)
    tied = [candidates_of(-0.5 * rng.integers(0, 4, size=(15, 8))) for _ in range(3)]
    cases = [random_candidates(seed, spread=1.0 + seed) for seed in range(5)] + tied
    batch = build_best_first_batched(
        torch.full((len(cases),), ANCHOR),
        torch.stack([torch.from_numpy(candidates.tokens) for candidates in cases]),
        torch.stack([torch.from_numpy(candidates.logprobs) for candidates in cases]),
        num_nodes=num_nodes,
        keep_spine=keep_spine,
    )
    config = TreeConfig(width=8, budget=num_nodes, keep_spine=keep_spine)
    for row, candidates in enumerate(cases):
        assert_same_tree(unpad(batch, row), build_best_first(ANCHOR, candidates, config))


@pytest.mark.parametrize("rule", ["top2gap", "accum_logp"])
@THOROUGH
@given(data=st.data())
def test_R10_published_rules_equal_reference(rule, data):
    candidates, config = data.draw(candidate_sets()), data.draw(tree_configs(rule))
    tree = BUILDERS[rule](ANCHOR, candidates, config)
    assert_same_tree(tree, published_reference(ANCHOR, candidates, config))


@pytest.mark.parametrize("rule", ["best_first", "top2gap", "accum_logp"])
@THOROUGH
@given(data=st.data())
def test_R39_every_tree_is_valid_and_within_width_and_budget(rule, data):
    candidates, config = data.draw(candidate_sets()), data.draw(tree_configs(rule))
    tree = BUILDERS[rule](ANCHOR, candidates, config).validate()
    assert tree.tokens[0] == ANCHOR
    assert 1 <= tree.num_nodes <= config.resolve_budget(len(candidates.tokens))
    assert np.bincount(tree.parents[1:], minlength=1).max() <= config.width
    assert np.isfinite(tree.logprobs).all()
    if config.width == 1:
        assert tree.is_chain


@pytest.mark.parametrize("rule", ["best_first", "top2gap", "accum_logp"])
@THOROUGH
@given(data=st.data())
def test_R10_keep_spine_keeps_the_linear_path(rule, data):
    candidates, config = data.draw(candidate_sets()), data.draw(tree_configs(rule))
    budget = config.resolve_budget(len(candidates.tokens))
    linear = type(config)(width=1, budget=min(budget, len(candidates.tokens) + 1))
    chain = build_best_first(ANCHOR, candidates, linear)
    spine_config = type(config)(**{**config.to_mapping(), "keep_spine": True})
    tree = BUILDERS[rule](ANCHOR, candidates, spine_config)
    node = 0
    for token in chain.tokens[1:]:
        children = [k for k in range(tree.num_nodes) if tree.parents[k] == node]
        assert children
        assert tree.tokens[children[0]] == token
        node = children[0]


@THOROUGH
@given(candidate_sets(), tree_configs())
def test_torch_and_numpy_candidates_give_one_tree(candidates, config):
    as_torch = Candidates(tokens=torch.from_numpy(candidates.tokens), logprobs=torch.from_numpy(candidates.logprobs))
    assert_same_tree(build_best_first(ANCHOR, as_torch, config), build_best_first(ANCHOR, candidates, config))
