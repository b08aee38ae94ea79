"""Move the accepted nodes' cache rows to where a chain's would be: all layers, keys, values and scales, one launch.

The row of the accepted node at depth d goes to the slot of node d. A node's number is at least its depth, so a row may
be both source and target of one move: each program reads all of its rows before it writes any. Knows addresses and row
sizes, no cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

WORD = 4  # bytes moved at a time
CHUNK = 256  # words of a row a program moves


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowBuffers:
    """Where rows live; the tensors themselves must be kept alive by their owner.

    Attributes:
        addresses: (M,) int64 of each buffer's slot 0.
        words: (M,) int64 of a row.
        strides: (M,) int64 words between slots.
        longest: words of the longest row.
    """

    addresses: Tensor
    words: Tensor
    strides: Tensor
    longest: int

    @classmethod
    def of(cls, buffers: Sequence[Tensor]) -> Self:
        """Describe buffers.

        Args:
            buffers: M tensors (S, ...) on one device, a slot's elements contiguous and a multiple of 4 bytes.

        Raises:
            ValueError: a buffer that is laid out otherwise.
        """
        rows = []
        for index, buffer in enumerate(buffers):
            size, stride = buffer[0].nbytes, buffer.stride(0) * buffer.element_size()
            if not buffer[0].is_contiguous() or size % WORD or stride % WORD or buffer.data_ptr() % WORD:
                raise ValueError(
                    f"cache buffer {index}: rows of {size} bytes {stride} apart, expected whole words without gaps"
                )
            rows.append((buffer.data_ptr(), size // WORD, stride // WORD))
        table = torch.tensor(rows, dtype=torch.int64, device=buffers[0].device)
        addresses, words, strides = (column.contiguous() for column in table.unbind(1))
        return cls(addresses=addresses, words=words, strides=strides, longest=max(row[1] for row in rows))


@triton.jit(do_not_specialize=["nodes", "path_width"])  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    addresses, words, strides, slots, path, counts, nodes, path_width, PATH: tl.constexpr, CHUNK: tl.constexpr
):
    """One chunk of a buffer's rows, for one request."""
    buffer = tl.program_id(0)
    request = tl.program_id(1)
    column = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    depth = tl.arange(0, PATH)
    base = tl.load(addresses + buffer).to(tl.pointer_type(tl.int32))
    stride = tl.load(strides + buffer)
    is_kept = depth <= tl.load(counts + request)
    node = tl.load(path + request * path_width + depth, mask=is_kept & (depth < path_width), other=0)
    is_moved = is_kept & (depth < path_width) & (node != depth)
    source = tl.load(slots + request * nodes + node, mask=is_moved, other=0).to(tl.int64)
    target = tl.load(slots + request * nodes + depth, mask=is_moved, other=0).to(tl.int64)
    mask = is_moved[:, None] & (column < tl.load(words + buffer))[None, :]
    row = tl.load(base + source[:, None] * stride + column[None, :], mask=mask, other=0)
    tl.debug_barrier()  # all have read before one writes
    tl.store(base + target[:, None] * stride + column[None, :], row, mask=mask)


def move_accepted(buffers: RowBuffers, slots: Tensor, path: Tensor, counts: Tensor) -> None:
    """Move every request's accepted rows.

    Args:
        buffers: changed in place.
        slots: (R, N) int contiguous, the slot of each node; no two requests share one.
        path: (R, D + 1) int64 contiguous accepted nodes from the root on, ascending.
        counts: (R,) int, accepted nodes below the root; entries of ``path`` beyond are not read. -1 moves nothing.

    No host sync, no allocation.
    """
    requests, nodes = slots.shape
    _move[(len(buffers.addresses), requests, triton.cdiv(buffers.longest, CHUNK))](
        buffers.addresses, buffers.words, buffers.strides, slots, path, counts, nodes, path.shape[1],
        PATH=triton.next_power_of_2(path.shape[1]), CHUNK=CHUNK,
    )  # fmt: skip
