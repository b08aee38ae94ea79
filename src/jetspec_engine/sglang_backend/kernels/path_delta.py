"""The gated delta rule over every node's own path: one program a leaf, state tile and head, the state in registers.

``S <- exp(g) S; S <- S + beta k (v - S^T k)^T; o = S^T q``, with q and k normalised, token by token from the committed
state to the leaf: the same sequence of the same operations whatever tree a node stands in, so its bits depend on its
path only. After each token the state is rounded to the dtype it is committed in, so a commit changes nothing either. A
node's state is kept for the commit, by one leaf (``path_plan``). Memory is read once a leaf and written once a node.
Source: Gated Delta Networks, arXiv 2412.06464. Knows slots and paths; no model. Slow twin: ``recurrent.reference``.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

VALUES = 32  # columns of a head's state that one program carries
NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Sizes of a layer's heads on this rank.

    Attributes:
        key_heads, key_width: heads of queries and of keys, and their width, a power of two.
        value_heads, value_width: heads of values, a multiple of the keys', and their width.
    """

    key_heads: int
    key_width: int
    value_heads: int
    value_width: int


@triton.jit(do_not_specialize=["nodes", "path_width"])  # type: ignore[untyped-decorator]
def _delta(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    mixed, decay, write, decay_scale, decay_bias, state, slots, path, depths, begins, kept, out, scale, epsilon,
    nodes, path_width, mixed_row, decay_row, write_row, state_slot, kept_request, kept_node,
    KEY_HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """VALUES columns of one head's state, along the path to one leaf."""
    parts: tl.constexpr = (VALUE_WIDTH + VALUES - 1) // VALUES
    head = tl.program_id(0) // parts
    value = tl.program_id(0) % parts * VALUES + tl.arange(0, VALUES)
    node = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    first = request * nodes
    begin = tl.load(begins + first + node)
    if begin == -1:  # a node with children
        return
    is_value = value < VALUE_WIDTH
    slot = tl.load(slots + request).to(tl.int64)
    if (begin < 0) | (slot < 0):  # padding of a tree or of a batch
        at = (first + node) * (VALUE_HEADS * VALUE_WIDTH) + head * VALUE_WIDTH + value
        tl.store(out + at, tl.zeros([VALUES], tl.float32), mask=is_value)
        # Of a padded request's inner nodes nothing is written; no row reads another's.
        return
    key = tl.arange(0, KEY_WIDTH)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    cell = head * (KEY_WIDTH * VALUE_WIDTH) + value[None, :] * KEY_WIDTH + key[:, None]
    is_cell = is_value[None, :] & (key[:, None] < KEY_WIDTH)
    memory = tl.load(state + slot * state_slot + cell, mask=is_cell, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(decay_scale + head).to(tl.float32))
    bias = tl.load(decay_bias + head).to(tl.float32)
    depth = tl.load(depths + first + node).to(tl.int32)
    for step in tl.range(0, depth + 1):
        at = tl.load(path + (first + node) * path_width + step)
        row = first + at
        inputs = mixed + row * mixed_row
        q = tl.load(inputs + key_head * KEY_WIDTH + key).to(tl.float32)
        k = tl.load(inputs + (KEY_HEADS + key_head) * KEY_WIDTH + key).to(tl.float32)
        v = tl.load(
            inputs + 2 * KEY_HEADS * KEY_WIDTH + head * VALUE_WIDTH + value, mask=is_value, other=0.0
        ).to(tl.float32)  # fmt: skip
        raw = tl.load(decay + row * decay_row + head).to(tl.float32) + bias
        softplus = tl.where(raw <= 20.0, tl.log(1.0 + tl.exp(raw)), raw)
        beta = 1.0 / (1.0 + tl.exp(-tl.load(write + row * write_row + head).to(tl.float32)))
        q = q / tl.sqrt(tl.sum(q * q) + epsilon) * scale
        k = k / tl.sqrt(tl.sum(k * k) + epsilon)
        memory *= tl.exp(-rate * softplus)
        v = (v - tl.sum(memory * k[:, None], 0)) * beta
        memory += k[:, None] * v[None, :]
        memory = memory.to(kept.dtype.element_ty).to(tl.float32)
        if step >= begin:
            read = tl.sum(memory * q[:, None], 0)
            tl.store(out + row * (VALUE_HEADS * VALUE_WIDTH) + head * VALUE_WIDTH + value, read, mask=is_value)
            tl.store(kept + request * kept_request + at.to(tl.int64) * kept_node + cell, memory, mask=is_cell)


def delta_paths(
    mixed: Tensor, decay: Tensor, write: Tensor, decay_scale: Tensor, decay_bias: Tensor, *, shape: DeltaShape,
    state: Tensor, slots: Tensor, path: Tensor, depths: Tensor, begins: Tensor, kept: Tensor, out: Tensor,
) -> Tensor:  # fmt: skip
    """Run every node's path through a layer's memory.

    Args:
        mixed: (R * N, C) a row contiguous: queries, keys and values of all heads side by side, after the convolution.
        decay, write: (R * N, value heads), a row contiguous: what the gates g and beta are made of.
        decay_scale, decay_bias: (value heads,), ``g = -exp(decay_scale) softplus(decay + decay_bias)``.
        shape: the layer's.
        state: (S, value heads, value width, key width), a slot contiguous; read.
        slots: (R,) int; below 0 for padding.
        path: (R, N, P) int32, contiguous; depths: (R, N) int64, contiguous.
        begins: (R, N) int32, contiguous, of ``plan_paths``.
        kept: (>= R, >= N, ...) as ``state`` after its first axis, written: a node's state once it is taken.
        out: (R * N, value heads, value width) contiguous, written.

    Returns:
        ``out``. No host sync, no allocation.
    """
    requests, nodes, width = path.shape
    values = min(VALUES, triton.next_power_of_2(shape.value_width))
    _delta[(shape.value_heads * triton.cdiv(shape.value_width, values), nodes, requests)](
        mixed, decay, write, decay_scale, decay_bias, state, slots, path, depths, begins, kept, out,
        shape.key_width**-0.5, NORM_EPSILON,
        nodes, width, mixed.stride(0), decay.stride(0), write.stride(0), state.stride(0), *kept.stride()[:2],
        KEY_HEADS=shape.key_heads, KEY_WIDTH=shape.key_width, VALUE_HEADS=shape.value_heads,
        VALUE_WIDTH=shape.value_width, VALUES=values, num_warps=1,
    )  # fmt: skip
    return out
