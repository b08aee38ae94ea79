"""The tree record: constructors, what it says of itself, and every promise it checks."""

import dataclasses

import numpy as np
import pytest
import torch

from jetspec_engine.errors import ConfigError
from jetspec_engine.tree.record import DraftTree
from support.tree_cases import tree_of

#       0
#      / \
#     1   2
#    / \   \
#   3   4   5
GOOD = {
    "tokens": [9, 1, 2, 1, 3, 1],
    "parents": [-1, 0, 0, 1, 1, 2],
    "depths": [0, 1, 1, 2, 2, 2],
    "logprobs": [0.0, -0.5, -1.0, -0.75, -1.5, -1.25],
}


def changed(**fields) -> DraftTree:
    return tree_of(**{**GOOD, **fields})


def test_a_good_tree_validates_and_returns_itself():
    tree = changed()
    assert tree.validate() is tree
    assert (tree.num_nodes, tree.max_depth, tree.is_chain) == (6, 2, False)


@pytest.mark.parametrize("ids", [[5, 6, 7], np.array([5, 6, 7], dtype=np.int32), torch.tensor([5, 6, 7])])
def test_chain(ids):
    tree = DraftTree.chain(ids).validate()
    assert tree.tokens.tolist() == [5, 6, 7]
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.depths.tolist() == [0, 1, 2]
    assert tree.logprobs.tolist() == [0.0, 0.0, 0.0]
    assert {tree.tokens.dtype, tree.parents.dtype, tree.depths.dtype} == {np.dtype(np.int64)}
    assert tree.is_chain
    assert tree.max_depth == 2


def test_chain_with_logprobs():
    tree = DraftTree.chain([5, 6], [0.0, -1.5]).validate()
    assert tree.logprobs.tolist() == [0.0, -1.5]
    assert tree.logprobs.dtype == np.float32


def test_root_only():
    tree = DraftTree.root_only(4).validate()
    assert (tree.num_nodes, tree.max_depth, tree.is_chain) == (1, 0, True)
    assert tree.tokens.tolist() == [4]


def test_the_record_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DraftTree.root_only(4).tokens = np.zeros(1, dtype=np.int64)


def test_a_last_node_as_deep_as_a_chains_makes_a_chain_only_when_it_is_one():
    assert not tree_of([0, 1, 2, 3], [-1, 0, 1, 1], [0, 1, 2, 2]).is_chain
    assert not tree_of([0, 1, 2, 3], [-1, 0, 0, 1], [0, 1, 1, 2]).is_chain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parents": [0, 0, 0, 1, 1, 2]}, r"tree\.parents\[0\]: 0, expected -1"),
        ({"parents": [-1, 0, 0, 1, 1, -1]}, r"tree\.parents\[5\]: -1, expected a node in \[0, 4\]"),
        ({"parents": [-1, 0, 0, 3, 1, 2]}, r"tree\.parents\[3\]: 3, expected a node in \[0, 2\]"),
        ({"parents": [-1, 0, 0, 1, 1, 99]}, r"tree\.parents\[5\]: 99"),
        ({"parents": [-1, 0, -7, 1, 1, 2]}, r"tree\.parents\[2\]: -7"),
        ({"depths": [1, 1, 1, 2, 2, 2]}, r"tree\.depths\[0\]: 1, expected 0"),
        ({"depths": [0, 1, 1, 2, 3, 2]}, r"tree\.depths\[4\]: 3, expected 2"),
        ({"tokens": [9, 1, 2, 1, 1, 1]}, r"nodes 3 and 4 are siblings with the same token 1"),
        ({"tokens": [9, 1, 2, 1, 3, -1]}, r"tree\.tokens\[5\]: -1"),
        ({"logprobs": [0.1, -0.5, -1.0, -0.75, -1.5, -1.25]}, r"tree\.logprobs\[0\]"),
        ({"logprobs": [0.0, -0.5, -1.0, -0.75, -1.5, float("nan")]}, r"tree\.logprobs\[5\]: nan"),
        ({"logprobs": [0.0, -0.5, -1.0, -0.75, -1.5, -0.5]}, r"tree\.logprobs\[5\]: -0\.5, expected at most"),
        ({"logprobs": [0.0, -1.0, -0.5, -1.0, -1.5, -1.25]}, r"node 2 is likelier than its elder sibling 1"),
    ],
)
def test_R39_a_broken_promise_is_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        changed(**fields).validate()


@pytest.mark.parametrize("name", ["tokens", "parents", "depths", "logprobs"])
def test_R39_arrays_of_the_wrong_kind_are_refused(name):
    good = changed()
    arrays = {field.name: getattr(good, field.name) for field in dataclasses.fields(good)}
    for wrong in (
        arrays[name].astype(np.int16),
        arrays[name][:-1],
        arrays[name][None],
        arrays[name].tolist(),
        torch.tensor(arrays[name]),
    ):
        with pytest.raises(ConfigError, match="tree\\."):
            DraftTree(**{**arrays, name: wrong}).validate()


def test_R39_an_empty_tree_is_refused():
    with pytest.raises(ConfigError, match="0 entries"):
        tree_of([], [], []).validate()
