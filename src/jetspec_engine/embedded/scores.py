"""Attention scores, whose bits depend on the query and the key alone.

Knows queries, keys and rotations, nothing of masks or values. Two arithmetics:

- ``Float32Scores``, for the CPU: a float32 product, whose sums over the dimensions of a head come out the same for
  every number of rows and keys once tiny shapes, for which libraries have kernels of their own, are padded. It is
  offered only where ``probe_scores`` finds it so.
- ``ExactScores``, for every other place: queries and keys are rounded to grids so coarse that float64 adds their
  products without rounding, so that no library can change a bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from jetspec_engine.models.bounds import LayerBounds

FLOAT64_BITS = 53


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """One item's rows in one verify.

    Attributes:
        count: N.
        group: query heads to a KV head.
        padded_rows: query rows scored, at least ``ScoreArithmetic.padded_rows(count * group)``.
        keys: (L, KV, N, head_dim), the slots of the rows' keys.
        rotations: (N, head_dim / 2) complex64.
    """

    count: int
    group: int
    padded_rows: int
    keys: Tensor
    rotations: Tensor

    def make_queries(self) -> Tensor:
        """Return a place for their queries, (KV, padded rows, head_dim), zero as the rows of padding stay."""
        return self.keys.new_zeros((self.keys.shape[1], self.padded_rows, self.keys.shape[3]))


class RowScores(Protocol):
    """The scores of one item's rows."""

    def store(self, layer: int, q: Tensor, k: Tensor) -> Tensor:
        """Rotate and store the keys k (KV, N, head_dim / 2) complex64, and return the rotated queries for ``score``.

        q is (KV, N, group, head_dim / 2) complex64.
        """
        ...


class ScoreArithmetic(Protocol):
    """How keys are stored and scores computed.

    Attributes:
        key_dtype: of the stored keys.
        min_keys: fewer keys than this are never scored; what lies beyond the used ones may be anything.
    """

    key_dtype: torch.dtype
    min_keys: int

    def padded_rows(self, count: int) -> int:
        """Return how many query rows are scored for ``count`` wanted ones."""
        ...

    def rows(self, new: NewRows) -> RowScores:
        """Prepare one item's rows."""
        ...

    def score(self, layer: int, queries: Tensor, keys: Tensor, out: Tensor) -> None:
        """Write scores in nats.

        Args:
            layer: 0 .. L - 1.
            queries: (KV, padded rows, head_dim), rows in the order (node, query head of the group).
            keys: (KV, head_dim, T).
            out: (KV, padded rows, T) float32, overwritten.
        """
        ...


class Float32Scores:
    """Float32 products; see the module."""

    key_dtype = torch.float32
    min_keys = 16

    def __init__(self, head_dim: int) -> None:
        self._scale = 1 / math.sqrt(head_dim)

    def padded_rows(self, count: int) -> int:
        """Return the next multiple of 4: libraries give one to three rows a kernel of their own."""
        return -(-count // 4) * 4

    def rows(self, new: NewRows) -> RowScores:
        """Prepare one item's rows."""
        return _Float32Rows(new, self._scale)

    def score(self, layer: int, queries: Tensor, keys: Tensor, out: Tensor) -> None:  # noqa: ARG002
        """Write the products; the scale is already in the queries."""
        torch.bmm(queries, keys, out=out)


class _Float32Rows:
    def __init__(self, new: NewRows, scale: float) -> None:
        self._keys = as_pairs(new.keys).unbind(0)
        self._rotations = new.rotations
        self._scaled_rotations = (new.rotations * scale).unsqueeze(1)
        self._queries = new.make_queries()
        used = as_pairs(self._queries)[:, : new.count * new.group]
        self._rotated = _by_node(used, new.count, new.group)

    def store(self, layer: int, q: Tensor, k: Tensor) -> Tensor:
        torch.mul(k, self._rotations, out=self._keys[layer])
        torch.mul(q, self._scaled_rotations, out=self._rotated)
        return self._queries


class ExactScores:
    """Products of integers, added in float64 without rounding.

    Args:
        head_dim: even.
        bounds: each layer's bounds, from which the grids follow.
    """

    key_dtype = torch.float64
    min_keys = 1

    def __init__(self, head_dim: int, bounds: Sequence[LayerBounds]) -> None:
        # Each of q and k gets half of what is left of 53 bits after a sum over head_dim products.
        bits = (FLOAT64_BITS - math.ceil(math.log2(head_dim))) // 2
        self._exponents = [(bits - _bits_above(b.query), bits - _bits_above(b.key)) for b in bounds]
        self._scales = [2.0 ** -(q + k) / math.sqrt(head_dim) for q, k in self._exponents]

    def padded_rows(self, count: int) -> int:
        """Return the count: no padding is needed."""
        return count

    def rows(self, new: NewRows) -> RowScores:
        """Prepare one item's rows."""
        return _ExactRows(new, self._exponents)

    def score(self, layer: int, queries: Tensor, keys: Tensor, out: Tensor) -> None:
        """Write the products, scaled and rounded to float32 once."""
        torch.mul(torch.bmm(queries, keys), self._scales[layer], out=out)


class _ExactRows:
    def __init__(self, new: NewRows, exponents: Sequence[tuple[int, int]]) -> None:
        self._keys = new.keys.unbind(0)
        self._queries = new.make_queries()
        self._rotations = new.rotations
        self._exponents = exponents
        self._shape = (new.count, new.group)

    def store(self, layer: int, q: Tensor, k: Tensor) -> Tensor:
        for_query, for_key = self._exponents[layer]
        rotated = torch.view_as_real(k * self._rotations).flatten(-2)
        torch.mul(rotated, 2.0**for_key, out=self._keys[layer])
        self._keys[layer].round_()
        rotated = torch.view_as_real(q * self._rotations.unsqueeze(1)).flatten(-2)
        torch.mul(
            rotated, 2.0**for_query, out=_by_node(self._queries[:, : self._shape[0] * self._shape[1]], *self._shape)
        )
        return self._queries.round_()


def as_pairs(x: Tensor) -> Tensor:
    """Return a (..., d) float32 tensor viewed as (..., d / 2) complex64."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


def _by_node(rows: Tensor, count: int, group: int) -> Tensor:
    """Return (KV, N * group, d) viewed as (KV, N, group, d)."""
    return rows.view(rows.shape[0], count, group, rows.shape[2])


def _bits_above(bound: float) -> int:
    return math.ceil(math.log2(max(bound, 2.0**-60)))


@lru_cache(maxsize=64)
def probe_scores(num_heads: int, head_dim: int, num_threads: int) -> bool:  # noqa: ARG001
    """Whether this machine's float32 products keep their bits for every number of rows and keys ``Float32Scores`` uses.

    Tried on random data on the CPU, once in a process for the heads of the model and its number of threads, by which
    a library may cut its work.
    """
    arithmetic = Float32Scores(head_dim)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(num_heads, 448, head_dim, generator=generator)
    keys = torch.randn(num_heads, 800, head_dim, generator=generator)
    wanted = torch.bmm(queries[:, :48], keys.mT)
    for count in (1, 5, 8, 12, 16, 20, 24, 44, 48, 52, 96, 100, 128, 192, 260, 384):
        rows = arithmetic.padded_rows(count)
        for num_keys in (arithmetic.min_keys, 17, 31, 32, 100, 255, 331, 800):
            # The first rows at both ends, so that their place is tried too.
            block = torch.cat((queries[:, 48 : 48 + rows - 4], queries[:, :4]), 1)
            for part, place in ((queries[:, :rows], 0), (block, rows - 4)):
                scores = torch.bmm(part, keys[:, :num_keys].mT)[:, place : place + 4]
                if not torch.equal(scores, wanted[:, :4, :num_keys]):
                    return False
    return True
