"""Rows of logits cut into blocks, so that the maximum is found by looking at block maxima first.

Every result is exact and ties go to the lower index. Knows nothing of what the numbers mean.
"""

import torch
from torch import Tensor

BLOCK = 128
_LOW_BITS = 0xFFFFFFFF


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


def first_top(values: Tensor, count: int) -> Tensor:
    """Return the columns of each row's ``count`` largest values, largest first, ties by lower column.

    ``torch.topk`` promises no order among equal values, so it is given keys that are never equal: the value's bits,
    mapped so that they compare as integers, above the complement of the column.

    Args:
        values: (N, C) float32 without NaN, C < 2**32.
        count: at most C.

    Returns:
        (N, count) int64.
    """
    bits = (values + 0.0).view(torch.int32)  # the sum turns -0 into 0: equal values, so equal bits
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    columns = torch.arange(values.shape[-1], device=values.device)
    keys = (ordered.long() << 32) + (_LOW_BITS - columns)
    return _LOW_BITS - (keys.topk(count, dim=-1).values & _LOW_BITS)


def block_topk(blocks: Tensor, maxima: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return each row's ``count`` largest values and their columns, largest first, ties by lower column.

    Exact: a value outside the ``count`` first blocks (by maximum, then by index) has ``count`` values before it, namely
    those blocks' maxima, each larger, or equal and in a lower column.

    Args:
        blocks: (N, C, BLOCK) from ``as_blocks``, without NaN (a row with one gives arbitrary columns).
        maxima: (N, C), ``blocks.amax(-1)``.
        count: at most BLOCK.

    Returns:
        (N, count) float32 and (N, count) int64 columns in [0, C * BLOCK).
    """
    rows, num_blocks, _ = blocks.shape
    # Ascending blocks make the position among the gathered values grow with the column.
    chosen = first_top(maxima, min(count, num_blocks)).sort(dim=-1).values
    every_row = torch.arange(rows, device=blocks.device).unsqueeze(-1)
    gathered = blocks[every_row, chosen].view(rows, -1)
    inside = first_top(gathered, count)
    columns = chosen.gather(-1, inside // BLOCK) * BLOCK + inside % BLOCK
    return gathered.gather(-1, inside), columns
