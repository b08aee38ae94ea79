"""From draft logits to candidates in two launches: the best of each chunk of the vocabulary, then the best of those.

The same tokens in the same order as ``tree/candidates.py``, whose rules for odd logits hold here too; log-probabilities
agree to float32 rounding. A vocabulary spread over ranks is merged by gathering the chunks' results, which carry whole
ids, before the second launch. Fixed shapes: safe inside a CUDA graph. Knows no tree.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 2048
NOTHING: tl.constexpr = tl.constexpr(-(1 << 63))  # key below every other
LOW: tl.constexpr = tl.constexpr((1 << 32) - 1)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOG_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChunkResults:
    """The best of each chunk, for T rows of C chunks.

    Attributes:
        keys: (T, C, W) int64, logit and id of a token such that a larger key is a better candidate.
        tops: (T, C) float32 largest logit of the chunk, NaN counts as +inf.
        sums: (T, C) float32 sum of exponentials relative to it.
    """

    keys: Tensor
    tops: Tensor
    sums: Tensor

    @classmethod
    def allocate(cls, *, rows: int, vocab_size: int, width: int, device: torch.device | str) -> Self:
        """Reserve the results of ``rows`` rows."""
        chunks = triton.cdiv(vocab_size, CHUNK)
        return cls(
            keys=torch.empty(rows, chunks, width, dtype=torch.int64, device=device),
            tops=torch.empty(rows, chunks, dtype=torch.float32, device=device),
            sums=torch.empty(rows, chunks, dtype=torch.float32, device=device),
        )


@triton.jit(do_not_specialize=["width", "first_id"])  # type: ignore[untyped-decorator]
def _best_of_chunk(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    logits, keys, tops, sums, row_stride, vocab_size, chunks, width, first_id, CHUNK: tl.constexpr
):
    """One chunk of one row."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    is_real = column < vocab_size
    value = tl.load(logits + row.to(tl.int64) * row_stride + column, mask=is_real, other=float("-inf"))
    value = value.to(tl.float32) + 0.0  # no -0, whose bits are not those of 0
    value = tl.where(value != value, float("inf"), value)  # noqa: PLR0124 only a NaN is not itself
    top = tl.max(value, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    tl.store(tops + row * chunks + chunk, top)
    tl.store(sums + row * chunks + chunk, tl.sum(tl.exp2((value - base) * LOG2_E), 0))
    bits = value.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    key = tl.where(is_real, (ordered << 32) | (LOW - (first_id + column).to(tl.int64)), NOTHING)
    for rank in tl.range(0, width):
        best = tl.max(key, 0)
        tl.store(keys + (row * chunks + chunk) * width + rank, best)
        key = tl.where(key == best, NOTHING, key)


@triton.jit(do_not_specialize=["width", "chunks"])  # type: ignore[untyped-decorator]
def _best_of_all(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    keys, tops, sums, tokens, logprobs, chunks, width, CHUNKS: tl.constexpr, KEYS: tl.constexpr
):
    """One row."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    each = tl.load(tops + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    part = tl.load(sums + row * chunks + chunk, mask=chunk < chunks, other=0.0)
    top = tl.max(each, 0)
    is_usable = tl.abs(top) < float("inf")
    base = tl.where(is_usable, top, 0.0)
    total = tl.sum(tl.where(is_usable, part * tl.exp2((each - base) * LOG2_E), 1.0), 0)
    log_sum = base + tl.log2(total) * LOG_2
    at = tl.arange(0, KEYS)
    key = tl.load(keys + row * chunks * width + at, mask=at < chunks * width, other=NOTHING)
    for rank in tl.range(0, width):
        best = tl.max(key, 0)
        key = tl.where(key == best, NOTHING, key)
        ordered = (best >> 32).to(tl.int32)
        value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        is_one = is_usable & (best != NOTHING) & (value > float("-inf"))
        tl.store(tokens + row * width + rank, tl.where(is_one, LOW - (best & LOW), 0))
        tl.store(logprobs + row * width + rank, tl.where(is_one, value - log_sum, float("-inf")))


def best_of_chunks(logits: Tensor, *, into: ChunkResults, first_id: int = 0) -> ChunkResults:
    """Reduce each chunk of each row.

    Args:
        logits: (T, V) of any floating dtype, a row contiguous; not changed.
        into: for T rows of V.
        first_id: id of the first column, for a part of a vocabulary.

    Returns:
        ``into``, written. No host sync, no allocation.
    """
    rows, chunks, width = into.keys.shape
    _best_of_chunk[(rows, chunks)](
        logits, into.keys, into.tops, into.sums, logits.stride(0), logits.shape[1], chunks, width, first_id, CHUNK=CHUNK
    )
    return into


def best_of_all(results: ChunkResults, *, tokens: Tensor, logprobs: Tensor) -> None:
    """Pick each row's best.

    Args:
        results: of the whole vocabulary; parts gathered from several ranks are joined along C.
        tokens: (T, W) int64 contiguous, written: by logit, then by lower id; 0 where there is no candidate.
        logprobs: (T, W) float32 contiguous, written: log-softmax in nats; -inf where there is none.

    No host sync, no allocation.
    """
    rows, chunks, width = results.keys.shape
    _best_of_all[(rows,)](
        results.keys, results.tops, results.sums, tokens, logprobs, chunks, width,
        CHUNKS=triton.next_power_of_2(chunks), KEYS=triton.next_power_of_2(chunks * width),
    )  # fmt: skip
