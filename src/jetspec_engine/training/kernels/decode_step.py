"""The parts of one decode step that are slow as separate operations: rotary, cache write and attention.

Each public function picks its Triton kernel on CUDA and its plain twin elsewhere; the twins define the result.
Rows are conversations; KV tensors are (rows * num_kv_heads, length, head_dim), contiguous (checked: a kernel that
reads a strided view as if it were contiguous writes fluent nonsense, and nothing else would notice).
"""

import math

import torch
from torch import Tensor

from jetspec_engine.training.kernels.triton_or_none import has_triton_for, jit, tl

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


@jit
def _rotate_store_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    Q, K, V, COS, SIN, POS, OUT, KEYS, VALUES, q_row, q_head, k_row, k_head, v_row, v_head, length,
    H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = HD // 2
    d = tl.arange(0, half)
    position = tl.load(POS + row)
    cos = tl.load(COS + position * HD + d).to(tl.float32)
    sin = tl.load(SIN + position * HD + d).to(tl.float32)
    if head < H:
        source = Q + row * q_row + head * q_head
        target = OUT + (row * H + head) * HD
        first = tl.load(source + d).to(tl.float32)
        second = tl.load(source + half + d).to(tl.float32)
        tl.store(target + d, (first * cos - second * sin).to(OUT.dtype.element_ty))
        tl.store(target + half + d, (second * cos + first * sin).to(OUT.dtype.element_ty))
    else:
        kv = head - H
        slot = ((row * KV + kv) * length + position) * HD
        source = K + row * k_row + kv * k_head
        first = tl.load(source + d).to(tl.float32)
        second = tl.load(source + half + d).to(tl.float32)
        tl.store(KEYS + slot + d, (first * cos - second * sin).to(KEYS.dtype.element_ty))
        tl.store(KEYS + slot + half + d, (second * cos + first * sin).to(KEYS.dtype.element_ty))
        source = V + row * v_row + kv * v_head
        tl.store(VALUES + slot + d, tl.load(source + d))
        tl.store(VALUES + slot + half + d, tl.load(source + half + d))


@jit
def _attend_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    Q, K, V, OUT, POS, scale, length,
    KV: tl.constexpr, G: tl.constexpr, HD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    count = tl.load(POS + program // KV).to(tl.int32) + 1
    g = tl.arange(0, 16)
    d = tl.arange(0, HD)
    q_at = (program * G + g[:, None]) * HD + d[None, :]
    q = tl.load(Q + q_at, mask=g[:, None] < G, other=0.0)
    top = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    mixed = tl.zeros([16, HD], tl.float32)
    base = program * length * HD
    for start in range(0, count, TILE):
        j = start + tl.arange(0, TILE)
        is_in = j < count
        at = base + j[:, None] * HD + d[None, :]
        k = tl.load(K + at, mask=is_in[:, None], other=0.0)
        v = tl.load(V + at, mask=is_in[:, None], other=0.0)
        score = tl.where(is_in[None, :], tl.dot(q, tl.trans(k)) * scale, -1e30)
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(score - new_top[:, None])
        total = total * shrink + tl.sum(p, 1)
        mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = new_top
    tl.store(OUT + q_at, (mixed / total[:, None]).to(OUT.dtype.element_ty), mask=g[:, None] < G)


def rotate_and_store(qkv: Triple, turns: Pair, positions: Tensor, cache: Pair) -> Tensor:
    """Rotate q and k at their rows' positions, write k and v to the cache, and return the rotated q, contiguous.

    Args:
        qkv: three of (rows, heads, head_dim), rows and heads strided as they like, head_dim dense.
        turns: cos and sin, (positions, head_dim).
        cache: keys and values of one layer, written in place.
    """
    (q, k, v), (cos, sin), (keys, values) = qkv, turns, cache
    _check_cache(keys, values)
    rows, num_heads, head_dim = q.shape
    num_kv = k.shape[1]
    if has_triton_for(q, keys):
        out = torch.empty(rows, num_heads, head_dim, device=q.device, dtype=q.dtype)
        _rotate_store_kernel[(rows, num_heads + num_kv)](
            q, k, v, cos, sin, positions, out, keys, values, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            v.stride(0), v.stride(1), keys.shape[1], H=num_heads, KV=num_kv, HD=head_dim, num_warps=1,
        )  # fmt: skip
        return out
    c, s = cos[positions][:, None].float(), sin[positions][:, None].float()

    def turn(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        return (x.float() * c + torch.cat([-second, first], -1) * s).to(x.dtype)

    line = torch.arange(rows * num_kv, device=q.device)
    column = positions.repeat_interleave(num_kv)
    keys[line, column] = turn(k).reshape(rows * num_kv, head_dim)
    values[line, column] = v.reshape(rows * num_kv, head_dim)
    return turn(q).contiguous()


def attend_one(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attend one query a row to its cache up to and including its own position: (rows, heads, head_dim)."""
    _check_cache(keys, values)
    q = q.contiguous()
    rows, num_heads, head_dim = q.shape
    num_kv = keys.shape[0] // rows
    groups = num_heads // num_kv
    if has_triton_for(q, keys) and groups <= 16:
        out = torch.empty_like(q)
        _attend_kernel[(rows * num_kv,)](
            q, keys, values, out, positions, head_dim**-0.5, keys.shape[1], KV=num_kv, G=groups, HD=head_dim, TILE=64,
            num_warps=2,
        )  # fmt: skip
        return out
    length = keys.shape[1]
    k, v = keys.view(rows, num_kv, length, head_dim), values.view(rows, num_kv, length, head_dim)
    score = (q.view(rows, num_kv, groups, head_dim) @ k.transpose(2, 3)).float() * head_dim**-0.5
    is_hidden = torch.arange(length, device=q.device)[None] > positions[:, None]
    weights = score.masked_fill(is_hidden[:, None, None], -math.inf).softmax(-1).to(q.dtype)
    mixed: Tensor = (weights @ v).view(rows, num_heads, head_dim)
    return mixed


def _check_cache(keys: Tensor, values: Tensor) -> None:
    if not keys.is_contiguous() or not values.is_contiguous():
        raise ValueError("cache: strided keys or values, expected contiguous tensors")
