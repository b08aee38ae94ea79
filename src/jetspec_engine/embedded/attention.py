"""Attention whose result for a row keeps its bits in any company, over keys in any physical order.

Knows one item's rows and its slots, and nothing of the model around it. The steps, each independent of the rows and
keys beside a row's own: scores (``scores``), -inf where a key is hidden, their maximum, which is exact,
``exp(score - max)`` for each element alone, and the weighted mean of the values (``sums``). A row that is not finite
spoils its own result and those of the rows that see it, and no other.
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
from jetspec_engine.embedded.sums import TOTAL_BITS, ExactSums, SpanKeys, SumArithmetic
from jetspec_engine.protocol import VerifyItem
from jetspec_engine.tree.mask import ancestor_mask
from jetspec_engine.tree.record import DraftTree

# Scores held at a time, 1 MB, and the fewest rows that are worth a call of their own.
MAX_SCORES = 1 << 18
MIN_PIECE = 16
# The widest of the arithmetics' dtypes, for whoever sizes the state before one is chosen.
VALUE_DTYPE = ExactSums.value_dtype


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Heads of the attention: KV heads, query heads to each, and dimensions of a head."""

    num_kv_heads: int
    group: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How scores are computed and values summed."""

    scores: ScoreArithmetic
    sums: SumArithmetic

    def padded_rows(self, count: int) -> int:
        """Return how many rows both need for ``count`` query rows."""
        return max(self.scores.padded_rows(count), self.sums.padded_rows(count))


def cut_chain(item: VerifyItem, heads: HeadShape) -> list[VerifyItem]:
    """Return a long chain as shorter ones, each behind the last, so that a piece's scores stay in a core's cache.

    Nor is a row of a piece scored against the keys of a later one. A tree, or a chain of a round's size, stays whole.
    """
    tokens, pieces, first = item.tree.tokens, [], 0
    if not item.tree.is_chain:
        return [item]
    while first < len(tokens):
        length = item.length + first
        rows = MAX_SCORES // (heads.num_kv_heads * heads.group * (length + MIN_PIECE))
        last = min(len(tokens), first + max(MIN_PIECE, rows))
        pieces.append(VerifyItem(region=item.region, length=length, tree=DraftTree.chain(tokens[first:last])))
        first = last
    return pieces


class Span:
    """The keys that an item's rows see in layers of one sliding window, and the buffer of their scores.

    Args:
        item: the item.
        window: keys a row sees, itself included; None for all.
        ancestors: (N, N) bool, the tree's mask; None for a single node.
        heads: the heads.
        arithmetic: of the attention.
        state: where keys and values live.
    """

    def __init__(
        self,
        *,
        item: VerifyItem,
        window: int | None,
        ancestors: NDArray[np.bool_] | None,
        heads: HeadShape,
        arithmetic: Arithmetic,
        state: KeyValueState,
    ) -> None:
        count, group = item.tree.num_nodes, heads.group
        oldest = 0 if window is None else max(0, item.length - window + 1)
        num_keys = item.length + count - oldest
        num_scored = max(num_keys, arithmetic.scores.min_keys)
        first = item.region.start + oldest
        self.keys = state.keys[:, :, first : first + num_scored].mT.unbind(0)
        shape = (heads.num_kv_heads, arithmetic.padded_rows(count * group), num_scored)
        self.scores = torch.empty(shape, dtype=torch.float32, device=state.keys.device)
        self.weights = self.scores[:, :, :num_keys]
        self.sums = arithmetic.sums.span(
            SpanKeys(
                item=item,
                group=group,
                oldest=oldest,
                weights=self.weights,
                values=state.values[:, :, first : first + num_keys],
            )
        )
        visible, from_key = visibility(item, window, oldest, ancestors)
        self.hidden: Tensor | None = None
        if visible is not None:
            self.hidden = torch.from_numpy(~visible).to(state.keys.device).view(1, count, 1, -1)
            rows = self.weights[:, : count * group, from_key:]
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
        arithmetic: of scores and sums.
        windows: each layer's sliding window.
        rotations: (N, head_dim / 2) complex64, the rotations of the rows' positions.
    """

    def __init__(
        self,
        *,
        item: VerifyItem,
        state: KeyValueState,
        heads: HeadShape,
        arithmetic: Arithmetic,
        windows: Sequence[int | None],
        rotations: Tensor,
    ) -> None:
        count = item.tree.num_nodes
        self._arithmetic = arithmetic
        first = item.region.start + item.length
        self._new_values = state.values[:, :, first : first + count].unbind(0)
        ancestors = ancestor_mask(item.tree.parents) if count > 1 else None
        self._spans = {
            window: Span(item=item, window=window, ancestors=ancestors, heads=heads, arithmetic=arithmetic, state=state)
            for window in set(windows)
        }
        self._windows = windows
        self._rows = arithmetic.scores.rows(
            count=count,
            group=heads.group,
            padded_rows=arithmetic.padded_rows(count * heads.group),
            new_keys=state.keys[:, :, first : first + count],
            rotations=rotations,
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """Store k and v and write the attention's result.

        Args:
            layer: 0 .. L - 1.
            q: (N, KV heads, group, head_dim / 2) complex64, not rotated.
            k: (N, KV heads, head_dim / 2) complex64, not rotated.
            v: (N, KV heads, head_dim) float32.
            out: (N, KV heads, group, head_dim), overwritten.
        """
        span = self._spans[self._windows[layer]]
        self._arithmetic.sums.store(layer, v.transpose(0, 1), self._new_values[layer])
        queries = self._rows.store(layer, q, k)
        self._arithmetic.scores.score(layer, queries, span.keys[layer], span.scores)
        if span.hidden is not None:
            # Filled, not added to: a hidden key may be NaN.
            span.masked.masked_fill_(span.hidden, -math.inf)
        weights = span.weights
        # Not exp2: its vector body and its scalar tail differ, so an element's bits would depend on its place.
        weights.sub_(weights.amax(-1, keepdim=True).sub_(TOTAL_BITS * math.log(2))).exp_()
        span.sums.combine(layer, out)
