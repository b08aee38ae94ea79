"""Where verify attention cuts the keys among programs, and the memory for the pieces' results.

A cut depends on a key's absolute position only, never on the length of a list, so a node meets the same cuts whatever
round it is verified in. Pieces grow with their position, as ``FINER`` to one: short contexts are cut finely, so that
few heads still fill a GPU, and long ones do not pay for hundreds of partial results. Knows no kernel.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FIRST = 128
FINER = 4
MOST_BYTES = 1 << 30


def split_bounds(max_context: int, first: int = FIRST, finer: int = FINER) -> list[int]:
    """Return the positions at which the keys are cut, from 0 to at least ``max_context``.

    Args:
        max_context: no key has this position or a later one.
        first: smallest piece, a power of two.
        finer: a piece is at least 1 / ``finer`` of the position where it begins, rounded down to a power of two.
    """
    bounds = [0]
    while bounds[-1] < max_context:
        share = bounds[-1] // finer
        bounds.append(bounds[-1] + max(first, 1 << share.bit_length() >> 1))
    return bounds


def bounds_within(max_context: int, piece_bytes: int, most_bytes: int) -> list[int]:
    """Return the finest cuts whose results fit; where nothing fits, the coarsest there are.

    A batch that needs coarse cuts for its memory has requests enough to fill a GPU without fine ones.

    Args:
        max_context: as for ``split_bounds``.
        piece_bytes: memory that one more piece takes.
        most_bytes: what all may take.
    """
    first, finer = FIRST, FINER
    bounds = split_bounds(max_context, first, finer)
    while (len(bounds) - 1) * piece_bytes > most_bytes and len(bounds) > 2:
        first, finer = 2 * first, max(1, finer // 2)
        bounds = split_bounds(max_context, first, finer)
    return bounds


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VerifyScratch:
    """Results of pieces on their way to the merge; one serves all layers, graphs and batch sizes up to its own.

    Attributes:
        bounds: (S + 1,) int32 cuts.
        top, weight: (S, T, H) float32, largest score (base-2 logarithm) and sum of weights of a piece.
        sums: (S, T, H, F) float32 weighted values of a piece.
    """

    bounds: Tensor
    top: Tensor
    weight: Tensor
    sums: Tensor

    @classmethod
    def allocate(
        cls, *, rows: int, heads: int, width: int, max_context: int, device: torch.device | str,
        most_bytes: int = MOST_BYTES, bounds: list[int] | None = None,
    ) -> Self:  # fmt: skip
        """Reserve the memory; it is not initialised, a piece is written before it is read.

        Args:
            rows: T, most nodes of all requests of a verify.
            heads: H, query heads.
            width: F of a head.
            max_context: longest list of keys, the tree included.
            device: where.
            most_bytes: more rows than fit get coarser cuts. Other cuts give other bits: what is to agree bit by bit
                runs on one scratch, or on scratches of the same rows, heads, width and context.
            bounds: the cuts, None for the finest that fit.
        """
        bounds = bounds or bounds_within(max_context, rows * heads * (width + 2) * 4, most_bytes)
        shape = (len(bounds) - 1, rows, heads)
        return cls(
            bounds=torch.tensor(bounds, dtype=torch.int32, device=device),
            top=torch.empty(shape, dtype=torch.float32, device=device),
            weight=torch.empty(shape, dtype=torch.float32, device=device),
            sums=torch.empty((*shape, width), dtype=torch.float32, device=device),
        )
