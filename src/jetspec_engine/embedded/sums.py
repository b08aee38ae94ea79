"""Weighted sums of values, whose bits do not depend on which other keys and rows lie beside a row's own.

Knows weights, values and positions, nothing of scores or masks: a hidden key arrives with weight zero. Two arithmetics:

- ``ExactSums``, for any library: weights and values are integers whose products and sums float64 holds exactly.
- ``SequentialSums``, for the CPU, twice as fast: float32 products over blocks of positions anchored at position 0. It
  rests on two habits of the library, tried by ``probe_sequential`` when a model is loaded: a short sum is taken in key
  order with one accumulator, so that a zero weight anywhere changes nothing, and a block's sum is added to what came
  before. A tree's node belongs to the block of its position, wherever it lies in memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetspec_engine.models.bounds import LayerBounds
from jetspec_engine.protocol import VerifyItem

# Weights are at most 2^23 before they are summed: integers that float32 holds, and float64 adds exactly.
TOTAL_BITS = 23
# Keys of one sum in key order: a block less one, and a whole tree behind it, must not be more.
MAX_SEQUENTIAL_KEYS = 191
BLOCKS = (128, 64)
MAX_SEQUENTIAL_NODES = MAX_SEQUENTIAL_KEYS - min(BLOCKS) + 1
# torch multiplies matrices by a loop of its own below this many products.
MIN_PRODUCTS = 400


class SpanSums(Protocol):
    """The sums of one item's rows over one span of keys."""

    def combine(self, layer: int, out: Tensor) -> None:
        """Write the weighted means of the values; the buffer of weights is overwritten.

        Args:
            layer: 0 .. L - 1.
            out: (N, KV, group, head_dim), overwritten.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SpanKeys:
    """What sums are taken over.

    Attributes:
        item: the item whose rows see the keys.
        group: query heads to a KV head.
        oldest: position of the first key; the last is the item's last node.
        weights: (KV, padded rows, T) float32 buffer that holds weights in [0, 2^23], not normalised, for ``combine``.
        values: (L, KV, T, head_dim) as stored.
    """

    item: VerifyItem
    group: int
    oldest: int
    weights: Tensor
    values: Tensor


class SumArithmetic(Protocol):
    """How values are stored and summed.

    Attributes:
        value_dtype: of the stored values.
    """

    value_dtype: torch.dtype

    def padded_rows(self, count: int) -> int:
        """Return how many rows of weights are summed for ``count`` wanted ones."""
        ...

    def store(self, layer: int, v: Tensor, out: Tensor) -> None:
        """Write values v (KV, N, head_dim) float32 into their slots ``out`` of the same shape.

        What is not finite is stored finite: a hidden key's weight of zero must silence it. The row it came from is
        not finite itself and tells.
        """
        ...

    def span(self, keys: SpanKeys) -> SpanSums:
        """Prepare the sums of an item's rows over a span of keys."""
        ...


class ExactSums:
    """Fixed point in float64.

    Weights are scaled to a sum of about 2^26 and rounded to integers; values are integers of at most 2^26, on a grid
    that the layer's weights bound. Every sum of their products is an integer below 2^53 for up to 2^20 keys, so no
    order, blocking or interleaving can change a bit, whatever library does the product. The one rounding is at the end.

    Args:
        bounds: each layer's bounds.
    """

    value_dtype = torch.float64
    weight_bits = 26
    value_bits = 26

    def __init__(self, bounds: Sequence[LayerBounds]) -> None:
        self._exponents = [self.value_bits - math.ceil(math.log2(max(b.value, 2.0**-60))) for b in bounds]

    def padded_rows(self, count: int) -> int:
        """Return the count: no padding is needed."""
        return count

    def store(self, layer: int, v: Tensor, out: Tensor) -> None:
        """Write the values' integers."""
        torch.mul(v, 2.0 ** self._exponents[layer], out=out)
        out.round_().nan_to_num_(0.0, 2.0**self.value_bits, -(2.0**self.value_bits))

    def span(self, keys: SpanKeys) -> SpanSums:
        """Prepare one item's sums."""
        scales = [2.0 ** -(self.weight_bits + exponent) for exponent in self._exponents]
        return _ExactSpan(keys, 2.0**self.weight_bits, scales)


class _ExactSpan:
    def __init__(self, keys: SpanKeys, total: float, scales: Sequence[float]) -> None:
        self._shape = (keys.item.tree.num_nodes, keys.group)
        self._weights = keys.weights
        self._values = keys.values.unbind(0)
        self._total = total
        self._scales = scales

    def combine(self, layer: int, out: Tensor) -> None:
        # Rounded for the total only: float64 adds these exactly, and the finer bits still count in the product.
        totals = self._weights.round().sum(-1, keepdim=True, dtype=torch.float64)
        integers = torch.empty_like(self._weights, dtype=torch.float64)
        torch.mul(self._weights, (self._total / totals).float(), out=integers).round_()
        summed = torch.bmm(integers, self._values[layer])
        torch.mul(by_node(summed, *self._shape), self._scales[layer], out=out)


class SequentialSums:
    """Float32 in blocks of positions; see the module.

    Args:
        head_dim: of the values.
        max_nodes: largest tree that is no chain, at most MAX_SEQUENTIAL_NODES; smaller ones allow larger blocks.

    Attributes:
        block: positions to a block.
    """

    value_dtype = torch.float32

    def __init__(self, head_dim: int, max_nodes: int) -> None:
        self.block = next(block for block in BLOCKS if block - 1 + max_nodes <= MAX_SEQUENTIAL_KEYS)
        # Sums over two keys and more must reach the library; over one there is nothing to order.
        self._min_rows = -(-MIN_PRODUCTS // (2 * head_dim))

    def padded_rows(self, count: int) -> int:
        """Return the next multiple of 4 that the library, not torch, multiplies."""
        return -(-max(count, self._min_rows) // 4) * 4

    def store(self, layer: int, v: Tensor, out: Tensor) -> None:  # noqa: ARG002
        """Write the values."""
        torch.nan_to_num(v, out=out)

    def span(self, keys: SpanKeys) -> SpanSums:
        """Prepare one item's sums."""
        return _SequentialSpan(keys, self.block)


class _SequentialSpan:
    def __init__(self, keys: SpanKeys, block: int) -> None:
        tree, length, oldest = keys.item.tree, keys.item.length, keys.oldest
        self._weights = keys.weights
        if tree.is_chain:
            # A chain's positions ascend in memory as the prefix's do.
            parts: list[Part] = [(*cut, None) for cut in block_ranges(oldest, length + tree.num_nodes, block)]
        else:
            root_block = max(oldest, length // block * block)
            parts = [(*cut, None) for cut in block_ranges(oldest, root_block, block)]
            parts += tree_parts(tree.depths, length, root_block, block)
        # Views are made once for all layers; the layers' loop only multiplies.
        ranges = [(slice(low - oldest, high - oldest), counts) for low, high, counts in parts]
        self._parts = [(keys.weights[:, :, taken], counts) for taken, counts in ranges]
        self._values = list(zip(*(keys.values[:, :, taken].unbind(0) for taken, _ in ranges), strict=True))
        heads, rows = keys.weights.shape[:2]
        self._summed = keys.values.new_empty((heads, rows, keys.values.shape[3]))
        self._exact_totals = keys.weights.new_empty((heads, rows, 1), dtype=torch.float64)
        self._totals = keys.weights.new_empty((heads, rows, 1))
        self._quotient = tuple(by_node(x, tree.num_nodes, keys.group) for x in (self._summed, self._totals))

    def combine(self, layer: int, out: Tensor) -> None:
        torch.sum(self._weights.round_(), -1, keepdim=True, dtype=torch.float64, out=self._exact_totals)
        self._totals.copy_(self._exact_totals)
        is_first = True
        for (weights, counts), values in zip(self._parts, self._values[layer], strict=True):
            counted = weights if counts is None else weights * counts
            if is_first:
                torch.bmm(counted, values, out=self._summed)
            else:
                self._summed.baddbmm_(counted, values)
            is_first = False
        torch.div(*self._quotient, out=out)


Part = tuple[int, int, Tensor | None]


def block_ranges(low: int, high: int, block: int) -> list[tuple[int, int]]:
    """Return [low, high) cut at the multiples of ``block``."""
    cuts = [low, *range((low // block + 1) * block, high, block), high]
    return list(pairwise(cuts)) if low < high else []


def tree_parts(depths: NDArray[np.int64], length: int, first: int, block: int) -> list[Part]:
    """Return, for each block of positions that holds nodes, a range of keys and which of them count.

    Args:
        depths: (N,) the nodes' depths; node i's key lies at ``length + i`` and has position ``length + depth``.
        length: committed tokens.
        first: the first committed position in the root's block, or ``length``.
        block: positions to a block.

    Returns:
        (first key, last key + 1, (keys,) float32 of 0 and 1 or None where all count), by ascending block.
    """
    end = length + len(depths)
    blocks = (length + depths) // block
    parts: list[Part] = []
    for own in range(int(blocks[0]), int(blocks.max()) + 1):
        low = length if parts else first
        counts = np.concatenate((np.ones(length - low, np.bool_), blocks == own))
        parts.append((low, end, None if counts.all() else torch.from_numpy(counts.astype(np.float32))))
    return parts


def by_node(rows: Tensor, count: int, group: int) -> Tensor:
    """Return (KV, padded rows, d) as (N, KV, group, d)."""
    used = rows[:, : count * group]
    return used.view(rows.shape[0], count, group, rows.shape[2]).transpose(0, 1)


@lru_cache(maxsize=64)
def probe_sequential(num_heads: int, head_dim: int, num_threads: int) -> bool:  # noqa: ARG001
    """Whether this machine's float32 products have the two habits that ``SequentialSums`` rests on.

    Tried on random data on the CPU, once in a process for the heads of the model and its number of threads, by which
    a library may cut its work.
    """
    arithmetic, first_keys = SequentialSums(head_dim, 1), BLOCKS[0]
    generator = torch.Generator().manual_seed(0)
    most = first_keys + MAX_SEQUENTIAL_KEYS
    weights = (torch.rand(num_heads, 384, most, generator=generator) * 2**TOTAL_BITS).round()
    values = torch.randn(num_heads, most, head_dim, generator=generator)
    first = _in_order(weights[:, :4, :first_keys], values[:, :first_keys])
    for num_keys in (1, 2, 3, 5, 8, 31, 64, 100, 128, MAX_SEQUENTIAL_KEYS):
        part, own = weights[:, :, first_keys:][:, :, :num_keys], values[:, first_keys:][:, :num_keys]
        wanted = first + _in_order(part[:, :4], own)
        for count in (1, 8, 12, 20, 36, 48, 52, 96, 100, 192, 384):
            rows = arithmetic.padded_rows(count)
            for order in (slice(None), torch.arange(rows - 1, -1, -1)):
                made = torch.bmm(weights[:, :rows, :first_keys][:, order], values[:, :first_keys])
                made = made.baddbmm_(part[:, :rows][:, order], own)[:, order]
                if not torch.equal(made[:, :4], wanted):
                    return False
    return True


def _in_order(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum over keys, one fused multiply-add after the other, by emulation in float64."""
    total = torch.zeros(*weights.shape[:2], values.shape[2])
    for key in range(weights.shape[2]):
        product = weights[:, :, key : key + 1].double() * values[:, key : key + 1].double()
        total = (total.double() + product).float()
    return total
