"""Rotary position tables for the draft head, and the rotation itself.

Knows nothing of layers or caches. Rotate-half convention; the sine table carries the sign of the halves, so that a
rotation is two multiplications and one roll.
"""

import torch
from torch import Tensor


def rope_tables(
    num_positions: int, head_dim: int, theta: float, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine, each (num_positions, 1, head_dim), computed in float32.

    The middle axis broadcasts over attention heads.
    """
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32, device=device), theta ** (-steps / head_dim))
    cos, sin = angles.cos(), angles.sin()
    signed = torch.cat((-sin, sin), -1)
    return torch.cat((cos, cos), -1).unsqueeze(1).to(dtype), signed.unsqueeze(1).to(dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Return x (..., T, heads, head_dim) rotated by the (T, 1, head_dim) rows of the tables."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
