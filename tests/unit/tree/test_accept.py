"""The accept walk by hand."""

import numpy as np
import pytest
import torch

from jetspec_engine.errors import EngineError
from jetspec_engine.tree.accept import NON_FINITE, Accepted, accept_greedy
from jetspec_engine.tree.record import DraftTree
from support.tree_cases import tree_of

#            0:9
#        /    |    \
#     1:1    2:2    3:3
#     / \    / \      \
#  4:1 5:2 6:1 7:2    8:1
#               |
#              9:5
TREE = tree_of(
    [9, 1, 2, 3, 1, 2, 1, 2, 1, 5], [-1, 0, 0, 0, 1, 1, 2, 2, 3, 7], [0, 1, 1, 1, 2, 2, 2, 2, 2, 3]
).validate()


def walk(**wanted) -> Accepted:
    """Targets given as n<node>=id; 0 elsewhere, which no node holds."""
    ids = [0] * TREE.num_nodes
    for name, token in wanted.items():
        ids[int(name[1:])] = token
    return accept_greedy(TREE, ids)


def test_nothing_right_yields_the_bonus_alone():
    assert walk(n0=7) == Accepted((0,), 7)
    assert walk(n0=7).num_correct_drafts == 0


def test_case_08_a_path_of_only_non_first_children():
    accepted = walk(n0=2, n2=2, n7=5, n9=4)
    assert accepted == Accepted((0, 2, 7, 9), 4)
    assert accepted.num_correct_drafts == 3


def test_a_right_token_below_a_wrong_node_does_not_count():
    assert walk(n0=3, n1=2, n2=2, n3=8) == Accepted((0, 3), 8)


def test_a_leaf_ends_the_walk_with_its_bonus():
    assert walk(n0=1, n1=1, n4=1) == Accepted((0, 1, 4), 1)


def test_case_14_unusable_target_logits_on_the_path_show_as_the_bonus():
    assert walk(n0=2, n2=NON_FINITE) == Accepted((0, 2), NON_FINITE)


def test_case_14_unusable_target_logits_off_the_path_do_not_matter():
    assert walk(n0=2, n1=NON_FINITE, n2=4) == Accepted((0, 2), 4)


@pytest.mark.parametrize("make", [tuple, np.array, torch.tensor])
def test_any_sequence_of_ids_will_do(make):
    accepted = accept_greedy(DraftTree.chain([4, 5, 6]), make([5, 6, 7]))
    assert accepted == Accepted((0, 1, 2), 7)
    assert all(type(node) is int for node in (*accepted.path, accepted.bonus))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_R39_a_wrong_number_of_ids_is_refused(count):
    with pytest.raises(EngineError, match=f"target_ids: {count} ids, expected one for each of 3 nodes"):
        accept_greedy(DraftTree.chain([4, 5, 6]), [0] * count)
