"""Verify attention in which a row's bits depend on its own key list only: one kernel for tree, chain and any split.

One program a node and KV head. Keys come in blocks of a fixed size counted from the list's first key; the boundary of
prefix and tree is not a boundary of blocks, siblings are never read, and the tile's shape does not depend on the number
of nodes. The price is one read of the prefix a node. The heads that share a KV head share the tile, so the prefix is
read once for all of them.

Imported where Triton is; its interpreter runs it on a CPU. Knows slots and lists, no engine.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.node_lists import NodeLists

KEY_BLOCK = 64
MIN_ROWS = 16  # smallest tile a tensor core multiplies


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    query, keys, values, out, indptr, indices, path, depths, scale,
    nodes, heads, kv_heads, path_width,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = row // nodes
    first = tl.load(indptr + request)
    length = tl.load(indptr + request + 1) - first
    total = length + tl.load(depths + row) + 1
    member = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_head = member < GROUP
    place = (row * heads + kv_head * GROUP + member)[:, None] * WIDTH + column[None, :]
    q = tl.load(query + place, mask=is_head[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_key = at < total
        slot = tl.load(indices + first + at, mask=at < length, other=0)
        own = tl.load(path + row * path_width + at - length, mask=(at >= length) & is_key, other=0)
        slot = tl.where(at < length, slot, own)
        where = (slot * kv_heads + kv_head)[:, None] * WIDTH + column[None, :]
        k = tl.load(keys + where, mask=is_key[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - higher)
        p = tl.exp(scores - higher[:, None])
        weight = weight * shrink + tl.sum(p, 1)
        v = tl.load(values + where, mask=is_key[:, None], other=0.0)
        sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = higher
    tl.store(out + place, sums / weight[:, None], mask=is_head[:, None])


def attend_by_lists(
    query: Tensor, keys: Tensor, values: Tensor, *, indptr: Tensor, indices: Tensor, lists: NodeLists, scale: float
) -> Tensor:
    """Attend to each node's key list.

    Args:
        query: (R, N, H, F) contiguous; F a power of two of at least 16.
        keys, values: (S, K, F) contiguous, of the query's dtype; H is a multiple of K.
        indptr, indices: where each request's prefix slots begin, (R + 1,), and the slots, in order; both int64.
        lists: key lists of the trees' nodes.
        scale: of the scores.

    Returns:
        (R, N, H, F) in the query's dtype. A node's bits depend on its query and its list only. No host sync.
    """
    requests, nodes, heads, width = query.shape
    group = heads // keys.shape[1]
    out = torch.empty_like(query)
    _attend[(requests * nodes, keys.shape[1])](
        query, keys, values, out, indptr, indices, lists.path.contiguous(), lists.depths.contiguous(), scale,
        nodes, heads, keys.shape[1], lists.path.shape[-1],
        GROUP=group, ROWS=max(MIN_ROWS, triton.next_power_of_2(group)), WIDTH=width, BLOCK=KEY_BLOCK,
    )  # fmt: skip
    return out
