"""Functions whose result for an element, or a row, never depends on its place in the tensor or on what lies beside it.

torch's own sigmoid, silu and softplus have a vector body and a scalar tail that differ, and the order of its sums
follows the tensor's shape. Here everything is made of exp, log1p and the four operations, which have one result
everywhere on a device, and sums are taken in one fixed order. Knows no model.
"""

import torch
from torch import Tensor

# Beyond this softplus(x) is x in float32.
SOFTPLUS_LINEAR = 20.0


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """Return ``x * sigmoid(x)``."""
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))``; NaN stays NaN."""
    return torch.where(x > SOFTPLUS_LINEAR, x, torch.log1p(torch.exp(x.clamp(max=SOFTPLUS_LINEAR))))


def pairwise_sum_(x: Tensor, dim: int) -> Tensor:
    """Return the sum over a dimension, kept with size 1; ``x`` is overwritten.

    The halves of the dimension are added to each other until one entry is left: one fixed tree of additions.
    """
    size = x.shape[dim]
    while size > 1:
        # An odd size leaves the middle entry for the next turn.
        half = size // 2
        x.narrow(dim, 0, half).add_(x.narrow(dim, size - half, half))
        size -= half
    return x.narrow(dim, 0, 1)


def unit_rows(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(sum(x * x) + eps) over the last dimension."""
    return x / pairwise_sum_(x * x, -1).add(eps).sqrt()
