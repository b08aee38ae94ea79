"""The short causal convolution of a linear-attention layer over every node's own path, all nodes at once.

A node's window is its nearest ancestors and, where the path is shorter, the last inputs committed before the tree. The
taps are summed from the oldest input to the node's own, in verify and in a chain alike, and ancestors' inputs are
rounded to the dtype they are committed in (SGLang's is bfloat16 also for a float32 target), so a node's bits depend on
its path only. Each node's window is kept for the commit. Knows slots and paths; no model. Slow twin:
``recurrent.reference``.
"""

import triton
import triton.language as tl
from torch import Tensor

FEATURES = 256  # of a program


@triton.jit(do_not_specialize=["nodes", "path_width", "features"])  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    mixed, weight, bias, state, slots, path, depths, kept, out,
    nodes, path_width, features, mixed_row, weight_row, state_slot, state_feature, state_step,
    kept_request, kept_node, kept_feature, kept_step, out_row,
    TAPS: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
):  # fmt: skip
    """BLOCK features of one node."""
    feature = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    node = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    is_feature = feature < features
    first = request * nodes
    into = out + (first + node) * out_row + feature
    slot = tl.load(slots + request).to(tl.int64)
    if slot < 0:  # padding of a batch
        tl.store(into, tl.zeros([BLOCK], tl.float32), mask=is_feature)
        return
    depth = tl.load(depths + first + node).to(tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + feature, mask=is_feature, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap  # inputs before the node's own
        is_own = back <= depth
        ancestor = tl.load(path + (first + node) * path_width + depth - back, mask=is_own, other=0)
        drafted = tl.load(mixed + (first + ancestor) * mixed_row + feature, mask=is_feature & is_own, other=0.0)
        committed = tl.load(
            state + slot * state_slot + feature * state_feature + (tap + depth) * state_step,
            mask=is_feature & (tap + depth < TAPS - 1), other=0.0,
        )  # fmt: skip
        given = tl.where(is_own, drafted, committed.to(drafted.dtype))
        if back > 0:  # as it will be read once committed
            given = given.to(state.dtype.element_ty).to(drafted.dtype)
        taken = tl.load(weight + feature * weight_row + tap, mask=is_feature, other=0.0)
        # As SGLang's own kernel does, a product is rounded to the inputs' dtype.
        total += (given.to(tl.float32) * taken.to(tl.float32)).to(mixed.dtype.element_ty).to(tl.float32)
        if tap > 0:
            where = kept + request * kept_request + node.to(tl.int64) * kept_node
            tl.store(where + feature * kept_feature + (tap - 1) * kept_step, given, mask=is_feature)
    if HAS_SILU:
        total = total / (1 + tl.exp(-total))
    tl.store(into, total, mask=is_feature)


def convolve_paths(
    mixed: Tensor, weight: Tensor, bias: Tensor | None, *, state: Tensor, slots: Tensor, path: Tensor, depths: Tensor,
    kept: Tensor, out: Tensor, has_silu: bool,
) -> Tensor:  # fmt: skip
    """Convolve every node's path.

    Args:
        mixed: (R * N, C) inputs, a row contiguous.
        weight: (C, T) taps, the oldest input's first, a row contiguous.
        bias: (C,) or None.
        state: (S, C, T - 1) the last inputs committed, oldest first; read.
        slots: (R,) int, each request's place in ``state``; below 0 for padding, whose rows become 0.
        path: (R, N, P) int32, contiguous; depths: (R, N) int64, contiguous.
        kept: (>= R, >= N, C, T - 1), written: the last inputs once the node is taken.
        out: (R * N, C), a row contiguous, written.
        has_silu: apply SiLU.

    Returns:
        ``out``. No host sync, no allocation.
    """
    requests, nodes, width = path.shape
    features, taps = weight.shape
    _convolve[(triton.cdiv(features, FEATURES), nodes, requests)](
        mixed, weight, weight if bias is None else bias, state, slots, path, depths, kept, out,
        nodes, width, features, mixed.stride(0), weight.stride(0), *state.stride(), *kept.stride(), out.stride(0),
        TAPS=taps, BLOCK=FEATURES, HAS_BIAS=bias is not None, HAS_SILU=has_silu, num_warps=4,
    )  # fmt: skip
    return out
