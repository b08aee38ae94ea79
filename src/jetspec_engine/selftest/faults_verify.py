"""Faults of the target's verify: positions, masks, windows, rotations, arithmetic, and rows of other requests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.embedded import attention, rows, target
from jetspec_engine.embedded.scores import Float32Scores
from jetspec_engine.embedded.sums import SequentialSums, SpanKeys, by_node
from jetspec_engine.selftest.mutants import MutantTable, Patch
from jetspec_engine.tree.mask import ancestor_mask, positions

TABLE = MutantTable()


@TABLE.add("a node's position is its index, not its depth")
def position_by_index() -> Sequence[Patch]:
    return [(target, "positions", lambda length, depths: length + np.arange(len(depths)))]


@TABLE.add("a node sees its elder siblings")
def sibling_visible() -> Sequence[Patch]:
    def faulty(parents: Any) -> Any:
        is_elder = (parents[:, None] == parents[None, :]) & np.tri(len(parents), k=-1, dtype=bool)
        return ancestor_mask(parents) | is_elder

    return [(attention, "ancestor_mask", faulty)]


@TABLE.add("a node sees every node of a lower index, as in a chain")
def causal_by_index() -> Sequence[Patch]:
    return [(attention, "ancestor_mask", lambda parents: np.tri(len(parents), dtype=bool))]


@TABLE.add("the walk up the ancestors stops one early: the root is hidden from its grandchildren on")
def ancestors_off_by_one() -> Sequence[Patch]:
    def faulty(parents: Any) -> Any:
        mask = ancestor_mask(parents).copy()
        mask[parents > 0, 0] = False
        return mask

    return [(attention, "ancestor_mask", faulty)]


@TABLE.add("a node does not see its parent")
def parent_hidden() -> Sequence[Patch]:
    def faulty(parents: Any) -> Any:
        mask = ancestor_mask(parents).copy()
        mask[np.arange(1, len(parents)), parents[1:]] = False
        return mask

    return [(attention, "ancestor_mask", faulty)]


@TABLE.add("a batch's later trees are verified under the first one's mask")
def mask_of_another_request() -> Sequence[Patch]:
    first: list[Any] = []
    forward = target.DecoderTarget.verify

    def verify(self: Any, items: Any) -> Any:
        first.clear()
        return forward(self, items)

    def faulty(parents: Any) -> Any:
        first.append(ancestor_mask(parents))
        return first[0] if len(first[0]) == len(parents) else first[-1]

    return [(target.DecoderTarget, "verify", verify), (attention, "ancestor_mask", faulty)]


@TABLE.add("all requests of a batch are placed after the first one's length")
def lengths_of_another_request() -> Sequence[Patch]:
    def faulty(self: Any, items: Any) -> Any:
        return np.concatenate([positions(items[0].length, item.tree.depths) for item in items])

    return [(target.DecoderTarget, "_positions", faulty)]


@TABLE.add("two requests of a batch get each other's logits")
def rows_of_another_request() -> Sequence[Patch]:
    forward = target.DecoderTarget.verify

    def faulty(self: Any, items: Any) -> Any:
        results = forward(self, items)
        if len(results) > 1 and results[0].logits.shape == results[1].logits.shape:
            results[:2] = results[1::-1]
        return results

    return [(target.DecoderTarget, "verify", faulty)]


@TABLE.add("rows are padded to the next multiple of four at the wrong end, so that padding leaks in")
def padded_row_leaks() -> Sequence[Patch]:
    apply = rows.RowPolicy.apply

    def faulty(self: Any, run: Any, *given: Tensor) -> Tensor:
        count = given[0].shape[0]
        # The next one, also where a forward's rows come padded to a multiple of four already.
        padded = [functional.pad(x, (0, 0, 4 - count % 4, 0)) for x in given]
        return apply(self, run, *padded)[:count]

    return [(rows.RowPolicy, "apply", faulty)]


@TABLE.add("a sliding window counts nodes instead of positions")
def window_by_index() -> Sequence[Patch]:
    def faulty(item: Any, window: Any, oldest: int, ancestors: Any) -> Any:
        if window is None:
            return ancestors, item.length - oldest
        near = item.length + np.arange(item.tree.num_nodes)
        columns = np.concatenate((np.arange(oldest, item.length), near))
        is_near = columns[None, :] > near[:, None] - window
        if ancestors is not None:
            is_near[:, item.length - oldest :] &= ancestors
        return is_near, 0

    return [(attention, "visibility", faulty)]


@TABLE.add("a sliding window is one position too short, everywhere")
def window_too_short() -> Sequence[Patch]:
    visibility = attention.visibility

    def faulty(item: Any, window: Any, oldest: int, ancestors: Any) -> Any:
        return visibility(item, None if window is None else window - 1, oldest, ancestors)

    return [(attention, "visibility", faulty)]


@TABLE.add("positions after the first forward are one behind")
def rope_offset_behind() -> Sequence[Patch]:
    return [(target, "positions", lambda length, depths: max(length - 1, 0) + depths)]


@TABLE.add("the rotary table is too short and wraps at 32 positions")
def rope_length_wraps() -> Sequence[Patch]:
    return [(target, "positions", lambda length, depths: (length + depths) % 32)]


class _PlainSpan:
    """A weighted mean summed over the keys as they lie in memory."""

    def __init__(self, keys: SpanKeys, dtype: torch.dtype) -> None:
        self._keys, self._dtype = keys, dtype

    def combine(self, layer: int, out: Tensor) -> None:
        weights = self._keys.weights / self._keys.weights.sum(-1, keepdim=True)
        summed = torch.bmm(weights.to(self._dtype), self._keys.values[layer].to(self._dtype))
        out.copy_(by_node(summed.float(), self._keys.item.tree.num_nodes, self._keys.group))


def _plain_sums(dtype: torch.dtype) -> Sequence[Patch]:
    class PlainSums(SequentialSums):
        def span(self, keys: SpanKeys) -> Any:
            return _PlainSpan(keys, dtype)

    def choose(config: Any, weights: Any, device: Any, max_nodes: int) -> Any:
        return attention.Arithmetic(scores=Float32Scores(config.head_dim), sums=PlainSums(config.head_dim, max_nodes))

    return [(target, "choose_arithmetic", choose)]


@TABLE.add("attention adds in whatever order the keys lie in memory")
def sums_in_memory_order() -> Sequence[Patch]:
    return _plain_sums(torch.float32)


@TABLE.add("attention adds in float16")
def sums_in_float16() -> Sequence[Patch]:
    return _plain_sums(torch.float16)


TABLE.add_not_applicable("stale-graph-buffer", "a graph replays the last round's buffer", "no graphs in this engine")
