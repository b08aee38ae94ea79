"""The canaries of the tests: a write past an end is found."""

import pytest
import torch

from support.guards import Guards


def test_a_write_past_either_end_is_found() -> None:
    for place in (-1, 3):
        guards = Guards()
        inner = guards.around(torch.zeros(3))
        guards.assert_whole()
        torch.as_strided(inner, (1,), (1,), inner.storage_offset() + place).fill_(1.0)
        with pytest.raises(AssertionError):
            guards.assert_whole()
