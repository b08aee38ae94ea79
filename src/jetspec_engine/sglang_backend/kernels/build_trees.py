"""Tree build in one launch a batch: one program a request pops the likeliest prefix, node after node.

All three rules, node for node and bit for bit the trees of ``tree/best_first.py`` and ``tree/published.py`` (and so of
``tree/batched.py``). A warp keeps the candidates for the next node, at most one a node, in registers; a pop is two
reductions over them. Fixed shapes, settings read on the device: safe inside a CUDA graph. Knows no logits and no cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.config import MAX_TREE_BUDGET, MAX_TREE_WIDTH, TREE_RULES
from jetspec_engine.sglang_backend.kernels.lay_out import lay_out
from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers

BEST_FIRST: tl.constexpr = tl.constexpr(TREE_RULES.index("best_first"))
TOP2GAP: tl.constexpr = tl.constexpr(TREE_RULES.index("top2gap"))
LOWEST: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).min)
NEVER: tl.constexpr = tl.constexpr(float("inf"))  # cost of what is not there
# An order key is (depth, parent or node, rank) in 32 bits; 32-bit integers are what a warp reduces in one instruction.
RANK_BITS: tl.constexpr = tl.constexpr(MAX_TREE_WIDTH.bit_length())
RANK_MASK: tl.constexpr = tl.constexpr((1 << RANK_BITS.value) - 1)
NODE_MASK: tl.constexpr = tl.constexpr(MAX_TREE_BUDGET - 1)
DEPTH_SHIFT: tl.constexpr = tl.constexpr(RANK_BITS.value + NODE_MASK.value.bit_length())
LARGEST: tl.constexpr = tl.constexpr((1 << 31) - 1)


@triton.jit
def _clean(logprob):  # type: ignore[no-untyped-def]
    """Give odd values the meaning they have in ``tree/ranked.py``."""
    value = logprob.to(tl.float64)
    return tl.where(value != value, float("-inf"), tl.minimum(value, 0.0)) + 0.0  # noqa: PLR0124 only a NaN is not itself


@triton.jit
def _gap_cap(gap, width, beta, g0):  # type: ignore[no-untyped-def]
    """Children that top2gap allows: ``max(1, round(W * sigmoid(-beta * (gap - g0))))``, halves to even."""
    slope = -beta * (gap - g0)
    small = tl.exp(-tl.abs(slope))
    share = width * (tl.where(slope >= 0.0, 1.0, small) / (1.0 + small))
    whole = tl.floor(share)
    rest = share - whole
    is_odd = whole - 2.0 * tl.floor(whole * 0.5) > 0.5
    cap = whole + tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), 1.0, 0.0)
    return tl.where(gap < float("inf"), tl.maximum(cap, 1.0), 1.0).to(tl.int32)  # a NaN is not below either


@triton.jit  # type: ignore[untyped-decorator]
def _rank(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    tokens, logprobs, ids, values, caps, used, rule, beta, g0, depth, width,
    DEPTHS: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Put the candidates of every level in order; return how many levels from the first on have any."""
    level = tl.arange(0, DEPTHS)
    rank = tl.arange(0, WIDTHS)
    is_level = level < depth
    at = level[:, None] * width + rank[None, :]
    is_real = is_level[:, None] & (rank < width)[None, :]
    value = _clean(tl.load(logprobs + at, mask=is_real, other=float("-inf")))
    place = tl.zeros([DEPTHS, WIDTHS], tl.int32)
    for other in tl.range(0, width):
        rival = _clean(tl.load(logprobs + level * width + other, mask=is_level, other=float("-inf")))[:, None]
        place += ((rival > value) | ((rival == value) & (other < rank)[None, :])).to(tl.int32)
    value = tl.where(is_real & (place < used), value, float("-inf"))
    tl.store(ids + level[:, None] * width + place, tl.load(tokens + at, mask=is_real, other=0), mask=is_real)
    tl.store(values + level[:, None] * width + place, value, mask=is_real)
    best = tl.max(value, 1)
    second = tl.max(tl.where(place == 1, value, float("-inf")), 1)
    by_gap = _gap_cap(best - second, tl.minimum(used, width).to(tl.float64), beta, g0)
    tl.store(caps + level, tl.where(rule == TOP2GAP, by_gap, used), mask=is_level)
    tl.debug_barrier()  # what other threads stored is read from here on
    return tl.min(tl.where(is_level & (best > float("-inf")), DEPTHS, level), 0)


@triton.jit
def _halves(value):  # type: ignore[no-untyped-def]
    """Split doubles that are not negative into two integers whose order, high before low, is theirs."""
    bits = value.to(tl.int64, bitcast=True)
    return (bits >> 32).to(tl.int32), ((bits & 0xFFFFFFFF) - 0x80000000).to(tl.int32)


@triton.jit
def _whole(high, low):  # type: ignore[no-untyped-def]
    """Undo ``_halves``."""
    return ((high.to(tl.int64) << 32) | (low.to(tl.int64) + 0x80000000)).to(tl.float64, bitcast=True)


@triton.jit
def _pop(cost, key, base):  # type: ignore[no-untyped-def]
    """Return the first candidate: its cost, order key, its parent's cost, and where it stands."""
    high, low = _halves(cost)
    first_high = tl.min(high, 0)
    is_it = high == first_high
    first_low = tl.min(tl.where(is_it, low, LARGEST), 0)
    is_it = is_it & (low == first_low)
    first = tl.min(tl.where(is_it, key, LARGEST), 0)
    is_it = is_it & (key == first)
    high, low = _halves(base)
    above = _whole(tl.max(tl.where(is_it, high, 0), 0), tl.max(tl.where(is_it, low, -LARGEST - 1), 0))
    return _whole(first_high, first_low), first, above, is_it


@triton.jit(do_not_specialize=["nodes", "depth", "width"])  # type: ignore[untyped-decorator]
def _grow(  # type: ignore[no-untyped-def]  # noqa: PLR0915, PLR0917 a kernel is called by position
    anchors, tokens, logprobs, settings, ids, values, caps,
    out_tokens, out_parents, out_depths, out_logprobs, out_count, out_valid, nodes, depth, width,
    NODES: tl.constexpr, DEPTHS: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """One request's tree."""
    request = tl.program_id(0)
    used = tl.minimum(tl.load(settings).to(tl.int32), width)
    budget = tl.minimum(tl.load(settings + 1).to(tl.int32), nodes)
    is_best_first = tl.load(settings + 2).to(tl.int32) == BEST_FIRST
    row = request * depth * width
    ids += row
    values += row
    caps += request * depth
    levels = _rank(
        tokens + row, logprobs + row, ids, values, caps, used, tl.load(settings + 2).to(tl.int32),
        tl.load(settings + 3), tl.load(settings + 4), depth, width, DEPTHS, WIDTHS,
    )  # fmt: skip
    room = budget - 1
    is_kept = tl.load(settings + 5) != 0.0
    spine = tl.where(is_kept, tl.minimum(room, levels), 0)
    room -= spine
    tip = tl.where(is_kept, 0, -1)
    tip_depth = 0
    tip_cost = tl.zeros([], tl.float64)
    slot = tl.arange(0, NODES)
    count = 1
    parents = tl.full([NODES], -1, tl.int32)
    depths = tl.zeros([NODES], tl.int32)
    ranks = tl.zeros([NODES], tl.int32)
    costs = tl.zeros([NODES], tl.float64)
    # Candidates: for best-first a node not yet in the tree (key: depth, parent, rank), which stands where its elder
    # sibling or its parent's number is; for the published rules a node not yet expanded (key: depth, node).
    start = tl.where(is_best_first, 0.0 - tl.load(values), 0.0)
    cost = tl.where(slot == 0, start, NEVER)
    base = tl.zeros([NODES], tl.float64)
    key = tl.where(is_best_first, tl.full([NODES], 1, tl.int32) << DEPTH_SHIFT, 0)
    best, first, above, is_it = _pop(cost, key, base)
    while (room > 0) & (best < NEVER):
        level = first >> DEPTH_SHIFT
        parent = (first >> RANK_BITS) & NODE_MASK
        rank = first & RANK_MASK
        nth = slot - count
        cap = tl.where(is_best_first, 0, tl.load(caps + level, mask=level < depth, other=0))
        step = tl.load(values + level * width + nth, mask=(nth >= 0) & (nth < cap), other=float("-inf"))
        below = tl.load(values + level * width, mask=level < depth, other=float("-inf"))
        beside = tl.load(
            values + (level - 1) * width + rank + 1, mask=is_best_first & (rank + 1 < width), other=float("-inf")
        )
        offered = tl.where(is_best_first, 1, tl.sum((step > float("-inf")).to(tl.int32), 0))
        on_spine = ((parent == tip) & (offered > 0)).to(tl.int32)
        added = tl.minimum(offered, room + on_spine)
        is_new = (nth >= 0) & (nth < added)
        total = tl.where(is_best_first, best, best - step)
        parents = tl.where(is_new, parent, parents)
        depths = tl.where(is_new, tl.where(is_best_first, level, level + 1), depths)
        ranks = tl.where(is_new, tl.where(is_best_first, rank, nth), ranks)
        costs = tl.where(is_new, total, costs)
        tip_cost = tl.where(on_spine > 0, tl.where(is_best_first, best, best - below), tip_cost)
        tip_depth += on_spine
        tip = tl.where(on_spine > 0, count, tip)
        # The popped one gives way to its next sibling, or to nothing; the new ones' places get what they offer.
        cost = tl.where(is_it, tl.where(is_best_first, above - beside, NEVER), cost)
        key = tl.where(is_it, first + 1, key)
        cost = tl.where(is_new, tl.where(is_best_first, best - below, total), cost)
        base = tl.where(is_new, best, base)
        key = tl.where(is_new, ((level + 1) << DEPTH_SHIFT) + (slot << RANK_BITS), key)
        room -= added - on_spine
        count += added
        best, first, above, is_it = _pop(cost, key, base)
    while tip_depth < spine:  # what is missing of a promised spine
        tip_cost -= tl.load(values + tip_depth * width)
        tip_depth += 1
        is_new = slot == count
        parents = tl.where(is_new, tip, parents)
        depths = tl.where(is_new, tip_depth, depths)
        ranks = tl.where(is_new, 0, ranks)
        costs = tl.where(is_new, tip_cost, costs)
        tip = count
        count += 1
    is_valid = slot < count
    is_draft = is_valid & (slot > 0)
    token = tl.load(ids + (depths - 1) * width + ranks, mask=is_draft, other=0)
    token = tl.where(slot == 0, tl.load(anchors + request), token)
    logprob = tl.maximum(0.0 - costs, LOWEST).to(tl.float32)
    at = request * nodes + slot
    is_slot = slot < nodes
    tl.store(out_tokens + at, token, mask=is_slot)
    tl.store(out_parents + at, parents, mask=is_slot)
    tl.store(out_depths + at, depths, mask=is_slot)
    tl.store(out_logprobs + at, tl.where(is_valid, logprob, float("-inf")), mask=is_slot)
    tl.store(out_valid + at, is_valid, mask=is_slot)
    tl.store(out_count + request, count)


def build_trees(
    anchors: Tensor, tokens: Tensor, logprobs: Tensor, *, lengths: Tensor, into: TreeBuffers
) -> TreeBuffers:
    """Build R trees by the buffers' settings.

    Args:
        anchors: (R,) int64 root tokens; like the next two contiguous, else they are copied.
        tokens: (R, D, W) int64 candidate ids.
        logprobs: (R, D, W) float log-probabilities in nats; odd values mean what they mean in ``ranked``.
        lengths: (R,) int committed tokens.
        into: buffers of R, N, D and W.

    Returns:
        ``into``: trees, path and positions written. No host sync, no allocation.
    """
    requests, depth, width = tokens.shape
    trees = into.trees
    nodes = trees.tokens.shape[1]
    _grow[(requests,)](
        anchors.contiguous(), tokens.contiguous(), logprobs.contiguous(), into.settings, into.ids, into.values,
        into.caps, trees.tokens, trees.parents, trees.depths, trees.logprobs, trees.num_nodes, trees.is_valid,
        nodes, depth, width, NODES=triton.next_power_of_2(nodes), DEPTHS=triton.next_power_of_2(depth),
        WIDTHS=triton.next_power_of_2(width), num_warps=1 if nodes <= 256 else 4, enable_fp_fusion=False,
    )  # fmt: skip
    lay_out(lengths, into=into)
    return into
