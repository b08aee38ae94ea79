"""The Triton kernel behind ``table_attention``: one program a node and KV head, heads of a KV head share the tile."""

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attend_kernel(  # noqa: PLR0917 a kernel is called by position
    query: Any, keys: Any, values: Any, out: Any, table: Any, prefix_lens: Any, path: Any, depths: Any, scale: Any,
    window: Any, nodes: Any, heads: Any, kv_heads: Any, table_stride: Any, path_stride: Any, path_node_stride: Any,
    depths_stride: Any, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    request = row // nodes
    node = row % nodes
    prefix = tl.load(prefix_lens + request)
    total = prefix + tl.load(depths + request * depths_stride + node) + 1
    first = tl.where(window < 0, 0, tl.maximum(total - 1 - window, 0))
    member = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_head = member < GROUP
    place = (row * heads + kv_head * GROUP + member)[:, None] * WIDTH + column[None, :]
    q = tl.load(query + place, mask=is_head[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    own_path = path + request * path_stride + node * path_node_stride
    slots = table + request * table_stride
    # The first block holds a key that is seen, so its maximum is finite from there on.
    for start in range(first // BLOCK * BLOCK, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_key = (at < total) & (at >= first)
        own = tl.load(own_path + at - prefix, mask=(at >= prefix) & is_key, other=0)
        slot = tl.load(slots + tl.where(at < prefix, at, prefix + own), mask=is_key, other=0).to(tl.int64)
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
