"""Attention of many draft blocks of one conversation at once.

A block at anchor position p sees the conversation's context below p, and itself causally; it never sees another
block. So one context of T keys serves all A blocks, and nothing of the dense (A * S, T + A * S) mask is computed.

Shapes: q (B, A, S, H, HD), block keys and values (B, A, S, KV, HD), context keys and values (B, T, KV, HD), anchors
(B, A) int64. The plain twin defines the result; the Triton kernels follow FlashAttention, the grouped query heads
of one KV head packed into the rows of one tile.
"""

import math
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.training.kernels.triton_or_none import has_triton_for, jit, tl

Pair = tuple[Tensor, Tensor]


@jit
def _query_places(block, kv, S: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Return where a block's queries of one KV head lie, and which of the tile's rows are queries.

    Row m holds position m % S of the group's query head m // S.
    """
    m = tl.arange(0, ROWS)
    heads = kv * (H // KV) + m[:, None] // S
    at = ((block * S + (m % S)[:, None]) * H + heads) * HD + tl.arange(0, HD)[None, :]
    return at, m[:, None] < H // KV * S


@jit
def _key_places(first, n, kv, KV: tl.constexpr, HD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where the keys n of one KV head lie, counted from position ``first``."""
    return ((first + n[:, None]) * KV + kv) * HD + tl.arange(0, HD)[None, :]


@jit
def _forward_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    Q, KB, VB, KC, VC, ANCHORS, OUT, LSE, scale, T, A,
    S: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // KV).to(tl.int64)
    kv = tl.program_id(0) % KV
    a = tl.program_id(1)
    block = b * A + a
    anchor = tl.load(ANCHORS + block).to(tl.int32)
    m = tl.arange(0, ROWS)
    s = m % S
    q_at, is_query = _query_places(block, kv, S, H, KV, HD, ROWS)
    q = tl.load(Q + q_at, mask=is_query, other=0.0)
    n = tl.arange(0, COLS)
    b_at = _key_places(block * S, n, kv, KV, HD)
    k = tl.load(KB + b_at, mask=n[:, None] < S, other=0.0)
    v = tl.load(VB + b_at, mask=n[:, None] < S, other=0.0)
    score = tl.where((n[None, :] <= s[:, None]) & (n[None, :] < S), tl.dot(q, tl.trans(k)) * scale, -1e30)
    top = tl.max(score, 1)
    p = tl.exp(score - top[:, None])
    total = tl.sum(p, 1)
    mixed = tl.dot(p.to(v.dtype), v)
    for start in range(0, anchor, TILE):
        j = start + tl.arange(0, TILE)
        c_at = _key_places(b * T, j, kv, KV, HD)
        k_c = tl.load(KC + c_at, mask=j[:, None] < anchor, other=0.0)
        v_c = tl.load(VC + c_at, mask=j[:, None] < anchor, other=0.0)
        score_c = tl.where(j[None, :] < anchor, tl.dot(q, tl.trans(k_c)) * scale, -1e30)
        new_top = tl.maximum(top, tl.max(score_c, 1))
        shrink = tl.exp(top - new_top)
        p_c = tl.exp(score_c - new_top[:, None])
        total = total * shrink + tl.sum(p_c, 1)
        mixed = mixed * shrink[:, None] + tl.dot(p_c.to(v_c.dtype), v_c)
        top = new_top
    tl.store(OUT + q_at, (mixed / total[:, None]).to(OUT.dtype.element_ty), mask=is_query)
    tl.store(LSE + (block * KV + kv) * ROWS + m, top + tl.log(total))


@jit
def _backward_block_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    Q, KB, VB, KC, VC, ANCHORS, OUT, LSE, DOUT, DQ, DKB, DVB, DELTA, scale, T, A,
    S: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // KV).to(tl.int64)
    kv = tl.program_id(0) % KV
    a = tl.program_id(1)
    block = b * A + a
    anchor = tl.load(ANCHORS + block).to(tl.int32)
    m = tl.arange(0, ROWS)
    s = m % S
    q_at, is_query = _query_places(block, kv, S, H, KV, HD, ROWS)
    q = tl.load(Q + q_at, mask=is_query, other=0.0)
    dout = tl.load(DOUT + q_at, mask=is_query, other=0.0)
    out = tl.load(OUT + q_at, mask=is_query, other=0.0)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    line = (block * KV + kv) * ROWS + m
    tl.store(DELTA + line, delta)
    lse = tl.load(LSE + line)
    n = tl.arange(0, COLS)
    is_col = n[:, None] < S
    b_at = _key_places(block * S, n, kv, KV, HD)
    k = tl.load(KB + b_at, mask=is_col, other=0.0)
    v = tl.load(VB + b_at, mask=is_col, other=0.0)
    score = tl.dot(q, tl.trans(k)) * scale
    p = tl.where((n[None, :] <= s[:, None]) & (n[None, :] < S), tl.exp(score - lse[:, None]), 0.0)
    ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None]) * scale
    dq = tl.dot(ds.to(k.dtype), k)
    tl.store(DKB + b_at, tl.dot(tl.trans(ds).to(q.dtype), q).to(DKB.dtype.element_ty), mask=is_col)
    tl.store(DVB + b_at, tl.dot(tl.trans(p).to(dout.dtype), dout).to(DVB.dtype.element_ty), mask=is_col)
    for start in range(0, anchor, TILE):
        j = start + tl.arange(0, TILE)
        c_at = _key_places(b * T, j, kv, KV, HD)
        k_c = tl.load(KC + c_at, mask=j[:, None] < anchor, other=0.0)
        v_c = tl.load(VC + c_at, mask=j[:, None] < anchor, other=0.0)
        p_c = tl.where(j[None, :] < anchor, tl.exp(tl.dot(q, tl.trans(k_c)) * scale - lse[:, None]), 0.0)
        ds_c = p_c * (tl.dot(dout, tl.trans(v_c)) - delta[:, None]) * scale
        dq += tl.dot(ds_c.to(k_c.dtype), k_c)
    tl.store(DQ + q_at, dq.to(DQ.dtype.element_ty), mask=is_query)


@jit
def _backward_context_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    Q, KC, VC, ANCHORS, LSE, DOUT, DELTA, DKC, DVC, scale, T, A,
    S: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // KV).to(tl.int64)
    kv = tl.program_id(0) % KV
    start = tl.program_id(1) * TILE
    m = tl.arange(0, ROWS)
    j = start + tl.arange(0, TILE)
    c_at = _key_places(b * T, j, kv, KV, HD)
    k = tl.load(KC + c_at, mask=j[:, None] < T, other=0.0)
    v = tl.load(VC + c_at, mask=j[:, None] < T, other=0.0)
    dk = tl.zeros([TILE, HD], tl.float32)
    dv = tl.zeros([TILE, HD], tl.float32)
    for a in range(0, A):
        block = b * A + a
        anchor = tl.load(ANCHORS + block).to(tl.int32)
        if anchor > start:
            q_at, is_query = _query_places(block, kv, S, H, KV, HD, ROWS)
            q = tl.load(Q + q_at, mask=is_query, other=0.0)
            dout = tl.load(DOUT + q_at, mask=is_query, other=0.0)
            line = (block * KV + kv) * ROWS + m
            lse = tl.load(LSE + line)
            delta = tl.load(DELTA + line)
            p = tl.where(j[None, :] < anchor, tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p).to(dout.dtype), dout)
            ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None]) * scale
            dk += tl.dot(tl.trans(ds).to(q.dtype), q)
    tl.store(DKC + c_at, dk.to(DKC.dtype.element_ty), mask=j[:, None] < T)
    tl.store(DVC + c_at, dv.to(DVC.dtype.element_ty), mask=j[:, None] < T)


def _power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        q, kb, vb, kc, vc, anchors = (x.contiguous() for x in tensors)
        B, A, S, H, HD = q.shape
        T, KV = kc.shape[1], kc.shape[2]
        rows, cols = _power_of_two(H // KV * S), _power_of_two(S)
        out = torch.empty_like(q)
        lse = torch.empty(B, A, KV, rows, device=q.device, dtype=torch.float32)
        sizes = {"S": S, "H": H, "KV": KV, "HD": HD, "ROWS": rows}
        _forward_kernel[(B * KV, A)](
            q, kb, vb, kc, vc, anchors, out, lse, HD**-0.5, T, A, **sizes, COLS=cols, TILE=64, num_warps=4
        )
        ctx.save_for_backward(q, kb, vb, kc, vc, anchors, out, lse)
        ctx.sizes, ctx.cols = sizes, cols
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, kb, vb, kc, vc, anchors, out, lse = ctx.saved_tensors
        dout = grads[0].contiguous()
        B, A, _, _, HD = q.shape
        T, KV = kc.shape[1], kc.shape[2]
        dq, dkb, dvb, dkc, dvc = (torch.empty_like(x) for x in (q, kb, vb, kc, vc))
        delta = torch.empty_like(lse)
        _backward_block_kernel[(B * KV, A)](
            q, kb, vb, kc, vc, anchors, out, lse, dout, dq, dkb, dvb, delta, HD**-0.5, T, A,
            **ctx.sizes, COLS=ctx.cols, TILE=64, num_warps=4,
        )  # fmt: skip
        _backward_context_kernel[(B * KV, -(-T // 64))](
            q, kc, vc, anchors, lse, dout, delta, dkc, dvc, HD**-0.5, T, A, **ctx.sizes, TILE=64, num_warps=4
        )
        return dq, dkb, dvb, dkc, dvc, None


def block_attention(q: Tensor, block: Pair, context: Pair, anchors: Tensor) -> Tensor:
    """Return the mixed values (B, A, S, H, HD); differentiable in all but the anchors.

    Args:
        q: rotated queries. block, context: rotated keys, and values.
    """
    if has_triton_for(q, context[0]):
        mixed: Tensor = _BlockAttention.apply(q, *block, *context, anchors)  # type: ignore[no-untyped-call]
        return mixed
    return block_attention_plain(q, block, context, anchors)


def block_attention_plain(q: Tensor, block: Pair, context: Pair, anchors: Tensor) -> Tensor:
    """Compute ``block_attention`` by one softmax over [context ; block] with a mask; the twin of the kernels."""
    (kb, vb), (kc, vc) = block, context
    B, A, S, H, HD = q.shape
    T, KV = kc.shape[1], kc.shape[2]
    q = q.view(B, A, S, KV, H // KV, HD)
    on_context = torch.einsum("baskgd,btkd->bakgst", q, kc).float() * HD**-0.5
    on_block = torch.einsum("baskgd,bankd->bakgsn", q, kb).float() * HD**-0.5
    is_future = torch.arange(T, device=q.device) >= anchors[..., None]
    is_later = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
    on_context = on_context.masked_fill(is_future[:, :, None, None, None], -math.inf)
    weights = torch.cat([on_context, on_block.masked_fill(is_later, -math.inf)], -1).softmax(-1).to(q.dtype)
    mixed = torch.einsum("bakgst,btkd->baskgd", weights[..., :T], vc)
    mixed = mixed + torch.einsum("bakgsn,bankd->baskgd", weights[..., T:], vb)
    return mixed.reshape(B, A, S, H, HD)
