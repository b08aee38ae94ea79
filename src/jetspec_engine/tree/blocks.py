"""Rows of logits cut into blocks, so that the maximum is found by looking at block maxima first.

Every result is exact and ties go to the lower index. Knows nothing of what the numbers mean.
"""

import torch
from torch import Tensor

BLOCK = 128


def as_blocks(logits: Tensor) -> Tensor:
    """Return (N, ceil(V / BLOCK), BLOCK) float32, the last block filled up with -inf; a copy unless nothing changes."""
    rows, columns = logits.shape
    count = -(-columns // BLOCK)
    if count * BLOCK == columns:
        return logits.float().view(rows, count, BLOCK)
    padded = logits.new_full((rows, count * BLOCK), float("-inf"), dtype=torch.float32)
    padded[:, :columns] = logits
    return padded.view(rows, count, BLOCK)


def block_argmax(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's maximum and its column, the lowest at a tie; NaN counts as the largest.

    Args:
        blocks: (N, C, BLOCK) from ``as_blocks``.

    Returns:
        (N,) float32 and (N,) int64 column in [0, C * BLOCK).
    """
    maxima = blocks.amax(dim=-1)
    block = maxima.argmax(dim=-1)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block].argmax(dim=-1)
    top = maxima.gather(-1, block.unsqueeze(-1)).squeeze(-1)
    return top, block * BLOCK + inside
