"""The running softmax that both halves of verify attention share: absorb a block of keys, merge two results.

One source of these operations, and multiplication and addition kept apart (``enable_fp_fusion=False`` at launch), is
what makes a block's bits the same wherever it is absorbed.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def absorb(q, k, v, is_seen, top, weight, sums, scale, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Add a block of keys; a row that sees none of it keeps its state."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        scores = tl.where(is_seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: not a NaN
    shrink = tl.exp2(top - safe)
    p = tl.exp2(scores - safe[:, None])
    weight = weight * shrink + tl.sum(p, 1)
    sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
    return higher, weight, sums


@triton.jit
def merge(top, weight, sums, other_top, other_weight, other_sums):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Put a later piece's result behind the earlier ones'; an empty side leaves the other's bits as they are."""
    higher = tl.maximum(top, other_top)
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    mine = tl.exp2(top - safe)
    theirs = tl.exp2(other_top - safe)
    return higher, weight * mine + other_weight * theirs, sums * mine[:, None] + other_sums * theirs[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def empty(ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the state of rows that have seen no key."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    return top, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
