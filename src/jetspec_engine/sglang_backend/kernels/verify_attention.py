"""Verify attention for exact and fast use: prefix keys read once for all nodes, bits that depend on a node's list only.

A node's keys are [committed prefix ; ancestors in depth order ; itself], in blocks of a fixed size counted from
position 0. Blocks that end before the boundary of prefix and tree are the same for all nodes and heads of a KV head:
``_prefix`` multiplies them as one tile, the pieces of the prefix in programs of their own (``verify_scratch``). The
one or two blocks after them differ from node to node: ``_tail`` gathers them, one program a node and KV head,
continues the piece they lie in and merges the pieces in order. Block, cut and order depend on positions alone, so
tree, chain and any split of a text into rounds give the same bits, provided that a row of a tensor core's product
depends neither on its place in the tile nor on the other rows: to be shown on each kind of GPU (``tests/sglang``).

Lengths and slots are read on the device, the grid depends on shapes only: safe inside a CUDA graph. Knows slots and
trees, no engine. Its slow twin is ``table_attention_reference``.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.errors import EngineError
from jetspec_engine.sglang_backend.kernels.softmax_state import absorb, empty, merge
from jetspec_engine.sglang_backend.kernels.verify_scratch import VerifyScratch

LOG2_E = 1.4426950408889634
NO_WINDOW = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Shapes of the work, fixed for a head's width and dtype: with others, other bits.

    Attributes:
        block: keys at a time.
        prefix_rows, prefix_warps: node-head pairs that share a read of the prefix, and their warps.
        tail_rows, tail_warps: likewise for a node's own blocks; at least 16 rows, of which a KV head's query heads
            are used. Where the shapes differ from the prefix's, the rows a warp multiplies must not.
        stages: of the prefix's loads.
    """

    block: int = 32
    prefix_rows: int = 64
    prefix_warps: int = 4
    tail_rows: int = 16
    tail_warps: int = 1
    stages: int = 3


HALF_TILES = Tiles()
# Full precision runs without tensor cores: small tiles, of one shape.
FLOAT_TILES = Tiles(block=32, prefix_rows=16, prefix_warps=4, tail_rows=16, tail_warps=4, stages=1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prefix:
    """The committed tokens' KV slots of R requests.

    Attributes:
        indices: (any,) int32 or int64 slots.
        starts: (R,) int, where a request's slots begin in ``indices``.
        lengths: (R,) int, committed tokens; the nodes' positions begin there.
        firsts: (R,) int, position of the first slot listed, for lists that begin at a window; None for 0.
    """

    indices: Tensor
    starts: Tensor
    lengths: Tensor
    firsts: Tensor | None = None


@triton.jit(do_not_specialize=["nodes", "tiles", "splits", "rows_all", "window"])  # type: ignore[untyped-decorator]
def _prefix(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    query, keys, values, indices, starts, lengths, firsts, depths,
    bounds, tops, weights, partial, scale, window,
    nodes, tiles, splits, rows_all, heads, query_row,
    key_slot, key_head, value_slot, value_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOWED: tl.constexpr,
    HAS_FIRST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One piece of the prefix for a tile of a KV head's node-head pairs."""
    kv_head = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    split = splits - 1 - tl.program_id(1)  # the long pieces first
    request = tl.program_id(2)
    length = tl.load(lengths + request).to(tl.int32)
    begin = tl.load(bounds + split)
    end = tl.minimum(tl.load(bounds + split + 1), length // BLOCK * BLOCK)
    if WINDOWED:
        begin = tl.maximum(begin, tl.maximum(length - window, 0) // BLOCK * BLOCK)
    if begin >= end:
        return
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    listed = indices + tl.load(starts + request)
    if HAS_FIRST:
        listed -= tl.load(firsts + request)
    pair = tile * ROWS + tl.arange(0, ROWS)
    node = request * nodes + pair // GROUP
    is_row = pair < nodes * GROUP
    head = kv_head * GROUP + pair % GROUP
    place = node.to(tl.int64) * heads + head
    column = tl.arange(0, WIDTH)
    asked = node.to(tl.int64) * query_row + head * WIDTH
    q = tl.load(query + asked[:, None] + column[None, :], mask=is_row[:, None], other=0.0)
    earliest = tl.zeros([ROWS], tl.int32)
    if WINDOWED:
        earliest = length + tl.load(depths + node, mask=is_row, other=0).to(tl.int32) - window
    top, weight, sums = empty(ROWS, WIDTH)
    for start in tl.range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        slot = tl.load(listed + at, mask=at >= length - window, other=0) if WINDOWED else tl.load(listed + at)
        slot = slot.to(tl.int64)
        k = tl.load(keys + slot[:, None] * key_slot + kv_head * key_head + column[None, :])
        v = tl.load(values + slot[:, None] * value_slot + kv_head * value_head + column[None, :])
        is_seen = at[None, :] >= earliest[:, None]
        top, weight, sums = absorb(q, k, v, is_seen, top, weight, sums, scale, WINDOWED)
    where = split * (rows_all.to(tl.int64) * heads) + place
    tl.store(tops + where, top, mask=is_row)
    tl.store(weights + where, weight, mask=is_row)
    tl.store(partial + where[:, None] * WIDTH + column[None, :], sums, mask=is_row[:, None])


@triton.jit
def _slots_of(at, is_seen, length, listed, own_path, own_slots):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Return the slots of the keys at these positions of a node's list."""
    slot = tl.load(listed + at, mask=(at < length) & is_seen, other=0).to(tl.int64)
    ancestor = tl.load(own_path + at - length, mask=(at >= length) & is_seen, other=0)
    own = tl.load(own_slots + ancestor, mask=(at >= length) & is_seen, other=0).to(tl.int64)
    return tl.where(at < length, slot, own)


@triton.jit(do_not_specialize=["nodes", "splits", "rows_all", "window", "path_width"])  # type: ignore[untyped-decorator]
def _tail(  # type: ignore[no-untyped-def]  # noqa: PLR0915, PLR0917 a kernel is called by position
    query, keys, values, out, indices, starts, lengths, firsts,
    slots, path, depths, bounds, tops, weights, partial, scale, window,
    nodes, splits, rows_all, path_width, heads, query_row,
    key_slot, key_head, value_slot, value_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr, HAS_FIRST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A node's own blocks, after the pieces before them, for the query heads of a KV head."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = row // nodes
    length = tl.load(lengths + request).to(tl.int32)
    total = length + tl.load(depths + row).to(tl.int32) + 1
    whole = length // BLOCK * BLOCK
    member = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_head = member < GROUP
    head = kv_head * GROUP + member
    place = row.to(tl.int64) * heads + head
    at_place = place[:, None] * WIDTH + column[None, :]
    asked = row.to(tl.int64) * query_row + head * WIDTH
    q = tl.load(query + asked[:, None] + column[None, :], mask=is_head[:, None], other=0.0)
    piece_size = rows_all.to(tl.int64) * heads
    cut = tl.arange(0, SPLITS)
    high = tl.load(bounds + cut + 1, mask=cut < splits, other=2147483647)
    begin = 0
    earliest = 0
    if WINDOWED:
        begin = tl.maximum(length - window, 0) // BLOCK * BLOCK  # _prefix began there
        earliest = total - 1 - window
    piece = tl.sum((high <= whole).to(tl.int32), 0)  # the piece that the node's own blocks lie in
    listed = indices + tl.load(starts + request)
    if HAS_FIRST:
        listed -= tl.load(firsts + request)
    at = whole + tl.arange(0, BLOCK)
    is_seen = (at < total) & (at >= earliest)
    slot = _slots_of(at, is_seen, length, listed, path + row * path_width, slots + request * nodes)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # what follows reads what _prefix wrote
    top, weight, sums = empty(ROWS, WIDTH)
    for done in tl.range(tl.sum((high <= begin).to(tl.int32), 0), piece):
        where = done * piece_size
        other_top = tl.load(tops + where + place, mask=is_head, other=float("-inf"))
        other_weight = tl.load(weights + where + place, mask=is_head, other=0.0)
        other_sums = tl.load(partial + where * WIDTH + at_place, mask=is_head[:, None], other=0.0)
        top, weight, sums = merge(top, weight, sums, other_top, other_weight, other_sums)
    is_begun = is_head & (tl.load(bounds + piece) < whole) & (begin < whole)
    where = piece * piece_size
    piece_top = tl.load(tops + where + place, mask=is_begun, other=float("-inf"))
    piece_weight = tl.load(weights + where + place, mask=is_begun, other=0.0)
    piece_sums = tl.load(partial + where * WIDTH + at_place, mask=is_begun[:, None], other=0.0)
    for start in tl.range(whole, total, BLOCK):
        if start == tl.load(bounds + piece + 1):  # the tree crosses a cut
            top, weight, sums = merge(top, weight, sums, piece_top, piece_weight, piece_sums)
            piece_top, piece_weight, piece_sums = empty(ROWS, WIDTH)
            piece += 1
        k = tl.load(
            keys + slot[:, None] * key_slot + kv_head * key_head + column[None, :], mask=is_seen[:, None], other=0.0
        )
        v = tl.load(
            values + slot[:, None] * value_slot + kv_head * value_head + column[None, :],
            mask=is_seen[:, None],
            other=0.0,
        )
        piece_top, piece_weight, piece_sums = absorb(
            q, k, v, is_seen[None, :], piece_top, piece_weight, piece_sums, scale, True
        )
        at += BLOCK
        is_seen = (at < total) & (at >= earliest)
        slot = _slots_of(at, is_seen, length, listed, path + row * path_width, slots + request * nodes)
    top, weight, sums = merge(top, weight, sums, piece_top, piece_weight, piece_sums)
    tl.store(out + at_place, sums / weight[:, None], mask=is_head[:, None])


def verify_attention(
    query: Tensor, keys: Tensor, values: Tensor, *, out: Tensor, prefix: Prefix, slots: Tensor, path: Tensor,
    depths: Tensor, scale: float, scratch: VerifyScratch, window: int = NO_WINDOW, tiles: Tiles | None = None,
    overlap: bool | None = None,
) -> Tensor:  # fmt: skip
    """Attend to every node's list of keys.

    Args:
        query: (R * N, H, F), a row contiguous: rows may lie apart, as in a projection of queries, keys and values
            together; F a power of two of at least 16.
        keys, values: (S, K, F) the pool, its last axis contiguous, the nodes' own already written; H is a multiple
            of K. Slots of keys that no node sees are not read.
        out: (R * N, H, F) contiguous, written.
        prefix: the requests' committed slots.
        slots: (R, N) int, contiguous, the slot of each node.
        path: (R, N, P) int32, contiguous: nodes from the root to each node, itself at its depth; what follows is
            not read.
        depths: (R, N) int64, contiguous; less than P.
        scale: of the scores.
        scratch: for at least R * N rows and the longest list.
        window: how many keys before itself a node sees, ``NO_WINDOW`` for all.
        tiles: None for the ones that fit the dtype.
        overlap: start the tail's programs while the prefix's are at work, None for where the GPU can; same bits.

    Returns:
        ``out``. A node's bits depend on its query, its list of keys and the tiles only. No host sync, no allocation.

    Raises:
        EngineError: more nodes than the scratch has rows, or queries whose heads lie apart.
    """
    requests, nodes = slots.shape
    if requests * nodes > scratch.top.shape[1]:
        raise EngineError(f"verify: {requests} x {nodes} nodes, expected at most the scratch's {scratch.top.shape[1]}")
    heads, width = query.shape[1:]
    if query.stride()[1:] != (width, 1):
        raise EngineError(f"verify: queries with strides {query.stride()}, expected a row's heads side by side")
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    shape = tiles or (FLOAT_TILES if query.dtype == torch.float32 else HALF_TILES)
    splits = len(scratch.bounds) - 1
    count = triton.cdiv(nodes * group, shape.prefix_rows)
    firsts = prefix.lengths if prefix.firsts is None else prefix.firsts
    strides = (keys.stride(0), keys.stride(1), values.stride(0), values.stride(1))
    overlap = can_overlap(query.device) if overlap is None else overlap
    options = {"GROUP": group, "WIDTH": width, "BLOCK": shape.block, "WINDOWED": window >= 0,
               "HAS_FIRST": prefix.firsts is not None, "OVERLAP": overlap, "enable_fp_fusion": False}  # fmt: skip
    scaled = scale * LOG2_E
    _prefix[(count * kv_heads, splits, requests)](
        query, keys, values, prefix.indices, prefix.starts, prefix.lengths, firsts, depths,
        scratch.bounds, scratch.top, scratch.weight, scratch.sums, scaled, window,
        nodes, count, splits, scratch.top.shape[1], heads, query.stride(0), *strides,
        ROWS=shape.prefix_rows, num_warps=shape.prefix_warps, num_stages=shape.stages, **options,
    )  # fmt: skip
    _tail[(requests * nodes, kv_heads)](
        query, keys, values, out, prefix.indices, prefix.starts, prefix.lengths, firsts,
        slots, path, depths, scratch.bounds, scratch.top, scratch.weight, scratch.sums, scaled, window,
        nodes, splits, scratch.top.shape[1], path.shape[-1], heads, query.stride(0), *strides,
        ROWS=max(shape.tail_rows, triton.next_power_of_2(group)), SPLITS=triton.next_power_of_2(splits),
        num_warps=shape.tail_warps, num_stages=1, **options, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    return out


@cache
def can_overlap(device: torch.device) -> bool:
    """Say whether a kernel may start before the one it depends on has ended: on Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
