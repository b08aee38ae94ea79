"""The beginning of a round in one launch: the head's blocks and everybody's slots.

Equals ``round_block.lay_block``. Knows tensors, no scheduler.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.round_block import RoundBlock


@triton.jit(do_not_specialize=["row_stride", "block", "nodes", "mask_id"])  # type: ignore[untyped-decorator]
def _block(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    bonus, prefix_lens, requests, table, ids, positions, slots, node_slots, row_stride, block, nodes, mask_id,
    NODES: tl.constexpr,
):  # fmt: skip
    """One request."""
    request = tl.program_id(0)
    column = tl.arange(0, NODES)
    is_node, is_row = column < nodes, column < block
    position = tl.load(prefix_lens + request).to(tl.int64) + column
    row = tl.load(requests + request).to(tl.int64)
    slot = tl.load(table + row * row_stride + position, mask=is_node, other=0).to(tl.int64)
    token = tl.where(column == 0, tl.load(bonus + request).to(tl.int64), mask_id)
    tl.store(ids + request * block + column, token, mask=is_row)
    tl.store(positions + request * block + column, position, mask=is_row)
    tl.store(slots + request * block + column, slot, mask=is_row)
    tl.store(node_slots + request * nodes + column, slot, mask=is_node)


def lay_block(
    bonus: Tensor, prefix_lens: Tensor, requests: Tensor, table: Tensor, *, block: int, nodes: int, mask_id: int
) -> RoundBlock:
    """Lay the blocks of r requests; arguments and result as ``round_block.lay_block``'s, a table row contiguous."""
    count = len(bonus)
    ids, positions, slots = table.new_empty((3, count, block), dtype=torch.int64).unbind()
    node_slots = table.new_empty((count, nodes), dtype=torch.int64)
    _block[(count,)](
        bonus, prefix_lens, requests, table, ids, positions, slots, node_slots, table.stride(0), block, nodes, mask_id,
        NODES=triton.next_power_of_2(nodes),
    )  # fmt: skip
    return RoundBlock(ids=ids, positions=positions, slots=slots, node_slots=node_slots)
