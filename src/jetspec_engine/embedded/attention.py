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

from jetspec_engine.embedded.scores import NewRows, ScoreArithmetic, as_pairs
from jetspec_engine.embedded.state import KeyValueState
from jetspec_engine.embedded.sums import TOTAL_BITS, SpanKeys, SumArithmetic
from jetspec_engine.protocol import VerifyItem
from jetspec_engine.tree.mask import ancestor_mask
from jetspec_engine.tree.record import DraftTree

# Scores held at a time, 1 MB, and the fewest rows that are worth a call of their own.
MAX_SCORES = 1 << 18
MIN_PIECE = 16


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


@dataclass(frozen=True, kw_only=True)
class AttentionSetup:
    """What all items of all verifies share.

    Attributes:
        state: where keys and values live.
        heads: the heads.
        arithmetic: of scores and sums.
        windows: each layer's sliding window.
    """

    state: KeyValueState
    heads: HeadShape
    arithmetic: Arithmetic
    windows: Sequence[int | None]


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
        setup: of the model's attention.
    """

    def __init__(
        self, *, item: VerifyItem, window: int | None, ancestors: NDArray[np.bool_] | None, setup: AttentionSetup
    ) -> None:
        heads, arithmetic, state = setup.heads, setup.arithmetic, setup.state
        count, group = item.tree.num_nodes, heads.group
        oldest = 0 if window is None else max(0, item.length - window + 1)
        num_keys = item.length + count - oldest
        num_scored = max(num_keys, arithmetic.scores.min_keys)
        first = item.region.start + oldest
        self.keys = state.keys[:, :, first : first + num_scored].mT.unbind(0)
        shape = (heads.num_kv_heads, arithmetic.padded_rows(count * group), num_scored)
        self.scores = torch.empty(shape, dtype=torch.float32, device=state.keys.device)
        self.weights = self.scores[:, :, :num_keys]
        self.largest = torch.empty((*shape[:2], 1), dtype=torch.float32, device=state.keys.device)
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
        setup: of the model's attention.
        rotations: (N, head_dim / 2) complex64, the rotations of the rows' positions.
        fused: (N, (H + 2 KV) * head_dim), where the caller puts the rows' queries, keys and values of each layer; see
            ``decoder.Attend``.
        out: (N, H * head_dim), overwritten by every call.

    Attributes:
        num_rows: N.
    """

    def __init__(
        self, item: VerifyItem, setup: AttentionSetup, *, rotations: Tensor, fused: Tensor, out: Tensor
    ) -> None:
        count, heads, state = item.tree.num_nodes, setup.heads, setup.state
        self.num_rows = count
        self._scores, self._sums, self._windows = setup.arithmetic.scores, setup.arithmetic.sums, setup.windows
        first = item.region.start + item.length
        self._new_values = state.values[:, :, first : first + count].unbind(0)
        ancestors = ancestor_mask(item.tree.parents) if count > 1 else None
        self._spans = {
            window: Span(item=item, window=window, ancestors=ancestors, setup=setup) for window in set(setup.windows)
        }
        self._rows = setup.arithmetic.scores.rows(
            NewRows(
                count=count,
                group=heads.group,
                padded_rows=setup.arithmetic.padded_rows(count * heads.group),
                keys=state.keys[:, :, first : first + count],
                rotations=rotations,
            )
        )
        # Views are made once for all layers: in a forward of one row a view costs as much as the arithmetic on it.
        q, k, v = cut_heads(fused, heads)
        self._q, self._k, self._v = as_pairs(q), as_pairs(k), v
        self._out = out.view(count, heads.num_kv_heads, heads.group, heads.head_dim)

    def __call__(self, layer: int) -> None:
        """Store keys and values of layer 0 .. L - 1 and write the attention's result."""
        span = self._spans[self._windows[layer]]
        self._sums.store(layer, self._v, self._new_values[layer])
        queries = self._rows.store(layer, self._q, self._k)
        self._scores.score(layer, queries, span.keys[layer], span.scores)
        if span.hidden is not None:
            # Filled, not added to: a hidden key may be NaN.
            span.masked.masked_fill_(span.hidden, -math.inf)
        weights = span.weights
        # Not exp2: its vector body and its scalar tail differ, so an element's bits would depend on its place.
        torch.amax(weights, -1, keepdim=True, out=span.largest)
        weights.sub_(span.largest.sub_(TOTAL_BITS * math.log(2))).exp_()
        span.sums.combine(layer, self._out)


def cut_heads(fused: Tensor, heads: HeadShape) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of fused rows (N, (H + 2 KV) * head_dim): q (KV, N, group, head_dim), k and v (KV, N, head_dim)."""
    num_kv, group, head_dim = heads.num_kv_heads, heads.group, heads.head_dim
    by_head = fused.view(len(fused), -1, head_dim)
    q, k, v = by_head.split_with_sizes((num_kv * group, num_kv, num_kv), 1)
    return q.view(len(fused), num_kv, group, head_dim).transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)


class BatchAttention:
    """``decoder.Attend`` over the rows of several items: each item's rows see their own sequence and nothing else.

    Args:
        items: run in order: a piece of a chain sees what those before it stored.
        setup: of the model's attention.
        num_rows: n, at least the items' rows; those beyond them are padding, and their result is zero.
        rotations: of the items' rows, in their order, (rows, head_dim / 2) complex64.
        dtype: of the result.

    Attributes:
        heads: of the model.
        num_used_rows: the items' rows, which come first.
    """

    def __init__(
        self,
        items: Sequence[VerifyItem],
        setup: AttentionSetup,
        *,
        num_rows: int,
        rotations: Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.heads, self.num_used_rows = setup.heads, len(rotations)
        heads, device = setup.heads, rotations.device
        num_heads = heads.num_kv_heads * heads.group
        width = (num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        self.fused = torch.empty((num_rows, width), dtype=torch.float32, device=device)
        self._result = torch.zeros((num_rows, num_heads * heads.head_dim), dtype=dtype, device=device)
        self._items = []
        first = 0
        for item in items:
            rows = slice(first, first + item.tree.num_nodes)
            parts = {"rotations": rotations[rows], "fused": self.fused[rows], "out": self._result[rows]}
            self._items.append(ItemAttention(item, setup, **parts))
            first = rows.stop

    def __call__(self, layer: int) -> Tensor:
        """Return (n, H * head_dim), valid until the next call; see ``decoder.Attend``."""
        for attend in self._items:
            attend(layer)
        return self._result
