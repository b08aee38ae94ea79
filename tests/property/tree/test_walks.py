"""Masks, links and the accept walk equal their slow twins on trees of any shape."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from jetspec_engine.tree.accept import NON_FINITE, accept_greedy
from jetspec_engine.tree.accept_batched import accept_greedy_batched
from jetspec_engine.tree.batched import TreeBatch
from jetspec_engine.tree.links import sibling_links
from jetspec_engine.tree.mask import ancestor_mask, ancestor_mask_batched
from jetspec_engine.tree.reference import accept_reference, ancestor_mask_reference, sibling_links_reference
from support.tree_cases import THOROUGH, random_trees, tree_of

NUM_TOKENS = 6


def batch_of(trees, num_nodes: int) -> TreeBatch:
    """Pad trees to one TreeBatch."""
    shape = (len(trees), num_nodes)
    tokens, parents = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    depths, logprobs = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -torch.inf)
    for row, tree in enumerate(trees):
        count = tree.num_nodes
        tokens[row, :count], parents[row, :count] = torch.tensor(tree.tokens), torch.tensor(tree.parents)
        depths[row, :count], logprobs[row, :count] = torch.tensor(tree.depths), torch.tensor(tree.logprobs)
    first_child, next_sibling = sibling_links(parents)
    return TreeBatch(
        tokens=tokens,
        parents=parents,
        depths=depths,
        logprobs=logprobs,
        num_nodes=torch.tensor([tree.num_nodes for tree in trees]),
        is_valid=logprobs > -torch.inf,
        first_child=first_child,
        next_sibling=next_sibling,
        mask=ancestor_mask_batched(parents, num_nodes - 1),
    )


@st.composite
def targets(draw, tree, size):
    """Ids at every node, mostly those of a child, so that walks go deep; padding holds anything."""
    ids = []
    for node in range(size):
        children = [int(tree.tokens[k]) for k in range(tree.num_nodes) if tree.parents[k] == node]
        wrong = st.sampled_from((NON_FINITE, *range(NUM_TOKENS)))
        ids.append(draw(st.one_of(st.sampled_from(children), wrong) if children else wrong))
    return ids


@THOROUGH
@given(random_trees())
def test_masks_equal_reference(tree):
    expected = ancestor_mask_reference(tree.parents)
    assert (ancestor_mask(tree.parents) == expected).all()
    batched = ancestor_mask_batched(torch.tensor(tree.parents)[None], max(1, tree.max_depth))
    assert (batched[0].numpy() == expected).all()


@THOROUGH
@given(st.lists(random_trees(), min_size=1, max_size=3))
def test_links_and_padded_masks_equal_reference(trees):
    batch = batch_of(trees, 21)
    for row, tree in enumerate(trees):
        parents = [*tree.parents.tolist(), *[-1] * (21 - tree.num_nodes)]
        expected = sibling_links_reference(parents)
        assert (batch.first_child[row].tolist(), batch.next_sibling[row].tolist()) == expected
        assert (batch.mask[row].numpy() == ancestor_mask_reference(parents)).all()


@THOROUGH
@given(st.data())
def test_accept_equals_reference(data):
    trees = data.draw(st.lists(random_trees(num_tokens=NUM_TOKENS), min_size=1, max_size=3))
    size, max_depth = 21, 20
    ids = [data.draw(targets(tree, size)) for tree in trees]
    batched = accept_greedy_batched(batch_of(trees, size), torch.tensor(ids), max_depth)
    for row, tree in enumerate(trees):
        real_ids = ids[row][: tree.num_nodes]
        expected = accept_reference(tree, real_ids)
        assert accept_greedy(tree, real_ids) == expected
        path = [*expected.path, *[-1] * (max_depth + 1 - len(expected.path))]
        assert batched.path[row].tolist() == path
        assert int(batched.num_correct_drafts[row]) == expected.num_correct_drafts
        assert int(batched.bonus[row]) == expected.bonus


@THOROUGH
@given(st.lists(st.integers(-1, 1), min_size=1, max_size=12), st.lists(st.integers(-1, 1), min_size=12, max_size=12))
def test_a_malformed_tree_is_walked_alike_everywhere(tokens, wanted):
    """Of siblings with one token the first counts, and a node of token -1 is never what the target wants."""
    count = len(tokens)
    parents = [-1] + [(node - 1) // 2 for node in range(1, count)]
    depths = [0] * count
    for node in range(1, count):
        depths[node] = depths[parents[node]] + 1
    tree = tree_of(tokens, parents, depths)
    expected = accept_reference(tree, wanted[:count])
    assert accept_greedy(tree, wanted[:count]) == expected
    batched = accept_greedy_batched(batch_of([tree], 12), torch.tensor([wanted]), 11)
    assert batched.path[0, : len(expected.path)].tolist() == list(expected.path)
    assert int(batched.num_correct_drafts[0]) == expected.num_correct_drafts
    assert int(batched.bonus[0]) == expected.bonus
