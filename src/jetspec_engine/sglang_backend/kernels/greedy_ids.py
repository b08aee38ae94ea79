"""The target's choice at every node in two launches: the best of each chunk of the vocabulary, then the best of those.

Equals ``tree/accept.greedy_ids``: the lower id at a tie, NON_FINITE where logits name no token. Safe inside a CUDA
graph. Knows no tree.
"""

import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.kernels.top_candidates import ChunkResults, best_of_chunks
from jetspec_engine.tree.accept import NON_FINITE

NO_TOKEN: tl.constexpr = tl.constexpr(NON_FINITE)
LOW: tl.constexpr = tl.constexpr((1 << 32) - 1)


@triton.jit(do_not_specialize=["chunks"])  # type: ignore[untyped-decorator]
def _pick(keys, tops, ids, chunks, CHUNKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    is_real = chunk < chunks
    top = tl.max(tl.load(tops + row * chunks + chunk, mask=is_real, other=float("-inf")), 0)
    best = tl.max(tl.load(keys + row * chunks + chunk, mask=is_real, other=-(1 << 63)), 0)
    tl.store(ids + row, tl.where(tl.abs(top) < float("inf"), LOW - (best & LOW), NO_TOKEN))


def greedy_ids(logits: Tensor, *, chunks: ChunkResults, into: Tensor) -> Tensor:
    """Pick each row's likeliest token.

    Args:
        logits: (T, V) of any floating dtype, a row contiguous; not changed.
        chunks: room for T rows of V, width 1.
        into: (T,) int64 contiguous, written.

    Returns:
        ``into``. No host sync, no allocation.
    """
    found = best_of_chunks(logits, into=chunks)
    rows, count, _ = found.keys.shape
    _pick[(rows,)](found.keys, found.tops, into, count, CHUNKS=triton.next_power_of_2(count), num_warps=1)
    return into
