"""Expected accept length by hand."""

import math

import pytest

from jetspec_engine.tree.expected import expected_accept_length
from jetspec_engine.tree.record import DraftTree
from support.tree_cases import tree_of


def test_plain_decoding_is_worth_one_token():
    assert expected_accept_length(DraftTree.root_only(3)) == 1.0


def test_every_node_adds_the_probability_of_its_path():
    half, quarter = math.log(0.5), math.log(0.25)
    tree = tree_of([0, 1, 2, 3], [-1, 0, 0, 1], [0, 1, 1, 2], [0.0, half, quarter, quarter])
    assert expected_accept_length(tree) == pytest.approx(2.0, rel=1e-6)
