"""Elementwise functions and sums: right, and the same at every place of a tensor."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from jetspec_engine.models.elementwise import pairwise_sum_, sigmoid, silu, softplus, unit_rows

FUNCTIONS = [(sigmoid, torch.sigmoid), (silu, functional.silu), (softplus, functional.softplus)]


@pytest.mark.parametrize(("ours", "torchs"), FUNCTIONS)
def test_functions_equal_torchs_and_do_not_depend_on_the_place(ours: Callable, torchs: Callable) -> None:
    values = torch.cat((torch.randn(61) * 8, torch.tensor([0.0, 19.99, 20.0, 20.01, 88.0, -88.0, 1e4, -1e4])))
    torch.testing.assert_close(ours(values), torchs(values), atol=1e-6, rtol=1e-5)
    for count in range(1, len(values)):
        assert torch.equal(ours(values[:count].clone()), ours(values)[:count])
        assert torch.equal(ours(values[count:].clone()), ours(values)[count:])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 31, 128])
def test_a_pairwise_sum_is_one_tree_whatever_lies_beside(size: int) -> None:
    values = torch.randn(9, size, 7)
    summed = pairwise_sum_(values.clone(), 1)
    torch.testing.assert_close(summed.double(), values.double().sum(1, keepdim=True), atol=1e-5, rtol=0)
    for row in range(9):
        assert torch.equal(pairwise_sum_(values[row : row + 1].clone(), 1), summed[row : row + 1])
        assert torch.equal(pairwise_sum_(values[row].T.clone(), -1), summed[row].T)


def test_unit_rows_have_length_one() -> None:
    rows = torch.randn(5, 12)
    torch.testing.assert_close(unit_rows(rows, 1e-6), functional.normalize(rows, dim=-1), atol=1e-6, rtol=0)
    assert (unit_rows(torch.zeros(1, 4), 1e-6) == 0).all()
