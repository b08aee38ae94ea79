"""Masks and positions by hand. Their equality with slow twins is in tests/property/tree."""

import numpy as np
import torch

from jetspec_engine.tree.mask import ancestor_mask, ancestor_mask_batched, positions

PARENTS = np.array([-1, 0, 0, 1, 2])
EXPECTED = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]], dtype=bool)


def test_a_node_sees_itself_and_its_ancestors_but_no_sibling():
    assert (ancestor_mask(PARENTS) == EXPECTED).all()
    assert (ancestor_mask_batched(torch.tensor(PARENTS)[None], 2)[0].numpy() == EXPECTED).all()


def test_case_07_siblings_share_a_position():
    depths = np.array([0, 1, 1, 2, 2])
    assert positions(100, depths).tolist() == [100, 101, 101, 102, 102]
    assert positions(torch.tensor([[100], [7]]), torch.tensor(depths)).tolist() == [
        [100, 101, 101, 102, 102],
        [7, 8, 8, 9, 9],
    ]


def test_a_mask_can_be_handed_to_torch():
    """from_numpy warns about read-only memory, and warnings are errors here."""
    torch.from_numpy(ancestor_mask(PARENTS))
