"""Attention whose result for a row keeps its bits in any company, over keys in any physical order.

Knows one item's rows and its slots, and nothing of the model around it. The softmax is done in fixed point:

1. Scores are sums over a head's dimensions only (``scores``), masked with -inf, and their maximum is exact.
2. Weights are ``exp(score - max)`` in float32, scaled so that they sum to about 2^26 and rounded to integers. The
   scale comes from the sum of the weights rounded to multiples of 2^-23, which float64 holds exactly.
3. Values are stored as integers below 2^26, on a grid that the layer's weights bound (``models.bounds``).

So every product of a weight and a value is an integer, and so is every sum of them, below 2^53: float64 adds them
without rounding. No order of summation, blocking, key position, interleaved masked key or number of rows can change a
bit, whatever library does the product. The one rounding comes at the end. For up to 2^20 keys the bound holds for
every finite input; a row that is not finite spoils its own result and those of the rows that see it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetspec_engine.embedded.scores import ScoreArithmetic
from jetspec_engine.embedded.state import KeyValueState
from jetspec_engine.models.bounds import LayerBounds
from jetspec_engine.protocol import VerifyItem
from jetspec_engine.tree.mask import ancestor_mask

WEIGHT_BITS = 26
VALUE_BITS = 26
# Bits kept of a weight relative to the row's largest, when the sum is taken.
SUM_BITS = 23
VALUE_DTYPE = torch.float64


def value_exponent(bounds: LayerBounds) -> int:
    """Return e so that values times 2^e are integers of at most VALUE_BITS after rounding."""
    return VALUE_BITS - math.ceil(math.log2(max(bounds.value, 2.0**-60)))


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Heads of the attention: KV heads, query heads to each, and dimensions of a head."""

    num_kv_heads: int
    group: int
    head_dim: int


class Span:
    """The keys that an item's rows see in layers of one sliding window, with the buffers of their scores.

    Args:
        item: the item.
        window: keys a row sees, itself included; None for all.
        ancestors: (N, N) bool, the tree's mask; None where every row sees every earlier row (N = 1).
        heads: the heads.
        scores: the arithmetic of scores.
        device: of the state.
    """

    def __init__(
        self,
        *,
        item: VerifyItem,
        window: int | None,
        ancestors: NDArray[np.bool_] | None,
        heads: HeadShape,
        scores: ScoreArithmetic,
        device: torch.device,
    ) -> None:
        count, group = item.tree.num_nodes, heads.group
        oldest = 0 if window is None else max(0, item.length - window + 1)
        self.num_keys = item.length + count - oldest
        self.first_slot = item.region.start + oldest
        self.num_scored = max(self.num_keys, scores.min_keys)
        shape = (heads.num_kv_heads, scores.padded_rows(count * group), self.num_scored)
        self.scores = torch.empty(shape, dtype=torch.float32, device=device)
        self.weights = torch.empty((*shape[:2], self.num_keys), dtype=VALUE_DTYPE, device=device)
        self.beyond = self.scores[:, :, self.num_keys :] if self.num_scored > self.num_keys else None
        self.used = self.scores[:, :, : self.num_keys]
        mask, from_key = visibility(item, window, oldest, ancestors)
        self.mask: Tensor | None = None
        if mask is not None:
            hidden = np.where(mask, np.float32(0), np.float32(-np.inf))
            self.mask = torch.from_numpy(hidden).to(device).view(1, count, 1, -1)
            rows = self.used[:, : count * group, from_key:]
            self.masked = rows.view(rows.shape[0], count, group, -1)


def visibility(
    item: VerifyItem, window: int | None, oldest: int, ancestors: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_] | None, int]:
    """Return which keys each row sees, and the first key the answer is about.

    Args:
        item: the item.
        window: keys a row sees, itself included; None for all.
        oldest: position of the span's first key.
        ancestors: the tree's mask, or None.

    Returns:
        (N, keys) bool for the span's last ``keys`` keys, all earlier ones being seen by every row; None when every
        row sees every key. The index within the span of the first of these keys.
    """
    depths = item.tree.depths
    if window is None or item.length + int(depths[-1 if ancestors is None else depths.argmax()]) < window:
        return ancestors, item.length - oldest
    rows = item.length + depths
    columns = np.concatenate((np.arange(oldest, item.length), rows))
    is_near = columns[None, :] > rows[:, None] - window
    if ancestors is not None:
        is_near[:, item.length - oldest :] &= ancestors
    return (None if is_near.all() else is_near), 0


class ItemAttention:
    """One item's attention in one verify, layer after layer.

    Args:
        item: the item; its rows become positions ``length ..`` of its region.
        state: where keys and values live.
        heads: the heads.
        scores: the arithmetic of scores.
        windows: each layer's sliding window.
        exponents: each layer's value exponent.
        rotations: (N, head_dim / 2) complex64, the rotations of the rows' positions.
    """

    def __init__(
        self,
        *,
        item: VerifyItem,
        state: KeyValueState,
        heads: HeadShape,
        scores: ScoreArithmetic,
        windows: Sequence[int | None],
        exponents: Sequence[int],
        rotations: Tensor,
    ) -> None:
        count = item.tree.num_nodes
        self._count, self._heads, self._scores, self._exponents = count, heads, scores, exponents
        first = item.region.start + item.length
        self._new_values = state.values[:, :, first : first + count].unbind(0)
        self._rows = scores.rows(count, state.keys[:, :, first : first + count], heads.group, rotations)
        ancestors = ancestor_mask(item.tree.parents) if count > 1 else None
        spans = {
            window: Span(
                item=item, window=window, ancestors=ancestors, heads=heads, scores=scores, device=state.keys.device
            )
            for window in set(windows)
        }
        self._spans = [spans[window] for window in windows]
        keys = {w: state.keys[:, :, s.first_slot : s.first_slot + s.num_scored].mT.unbind(0) for w, s in spans.items()}
        values = {w: state.values[:, :, s.first_slot : s.first_slot + s.num_keys].unbind(0) for w, s in spans.items()}
        self._keys = [keys[window][layer] for layer, window in enumerate(windows)]
        self._values = [values[window][layer] for layer, window in enumerate(windows)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """Store k and v and write the attention's result.

        Args:
            layer: 0 .. L - 1.
            q: (N, KV heads, group, head_dim / 2) complex64, not rotated.
            k: (N, KV heads, head_dim / 2) complex64, not rotated.
            v: (N, KV heads, head_dim) float32.
            out: (N, KV heads, group, head_dim), overwritten.
        """
        span, exponent = self._spans[layer], self._exponents[layer]
        stored = self._new_values[layer]
        torch.mul(v.transpose(0, 1), 2.0**exponent, out=stored)
        stored.round_()
        queries = self._rows.store(layer, q, k)
        self._scores.score(layer, queries, self._keys[layer], span.scores)
        if span.mask is not None:
            span.masked.add_(span.mask)
        if span.beyond is not None:
            span.beyond.fill_(-math.inf)
        powers = span.used
        # Not exp2: its vector body and its scalar tail differ, so an element's bits depend on its place.
        powers.sub_(powers.amax(-1, keepdim=True).sub_(SUM_BITS * math.log(2))).exp_()
        total = powers.round().sum(-1, keepdim=True, dtype=torch.float64)
        torch.mul(powers, (2.0**WEIGHT_BITS / total).float(), out=span.weights).round_()
        summed = torch.bmm(span.weights, self._values[layer])[:, : self._count * self._heads.group]
        by_row = summed.view(summed.shape[0], self._count, self._heads.group, -1).transpose(0, 1)
        torch.mul(by_row, 2.0 ** -(WEIGHT_BITS + exponent), out=out)
