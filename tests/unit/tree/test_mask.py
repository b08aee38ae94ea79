"""Masks and positions by hand. Their equality with slow twins is in tests/property/tree."""

import numpy as np
import torch

from jetspec_engine.tree.mask import ancestor_mask, ancestor_mask_batched, ancestor_words, pack_words, positions

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


def test_words_of_a_chain_fill_up_to_the_sign_bit():
    chain = np.arange(-1, 64)
    words = ancestor_words(chain, 64)
    assert words.shape == (65, 2)
    assert words[63].tolist() == [-1, 0]
    assert words[64].tolist() == [-1, 1]
    assert ancestor_words(chain, 32)[32].tolist() == [-1, 1, 0]
    assert (pack_words(torch.from_numpy(ancestor_mask(chain)), 32).numpy() == ancestor_words(chain, 32)).all()


def test_masks_and_words_can_be_handed_to_torch():
    """from_numpy warns about read-only memory, and warnings are errors here."""
    torch.from_numpy(ancestor_mask(PARENTS))
    torch.from_numpy(ancestor_words(PARENTS))
