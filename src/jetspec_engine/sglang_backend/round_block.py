"""The beginning of a round: the head's block of each request and the slots that its rows and the tree's nodes get.

In torch, the oracle of ``kernels/draft_block.py``. Knows SGLang's request table; no model and no tree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RoundBlock:
    """The rows of r requests, contiguous.

    Attributes:
        ids: (r, D + 1) int64, the last committed token, then the mask token.
        positions: (r, D + 1) int64.
        slots: (r, D + 1) int64 of the block's rows.
        node_slots: (r, N) int64 of the tree's nodes, N at least D + 1.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    node_slots: Tensor


def lay_block(
    bonus: Tensor, prefix_lens: Tensor, requests: Tensor, table: Tensor, *, block: int, nodes: int, mask_id: int
) -> RoundBlock:
    """Lay the blocks of r requests behind their prefixes.

    Args:
        bonus: (r,) last committed tokens.
        prefix_lens: (r,) int64 committed tokens in the cache.
        requests: (r,) rows of the table.
        table: (any, S) int32 slots by position.
        block: D + 1.
        nodes: N.
        mask_id: the head's mask token.

    Returns:
        New tensors. No host sync.
    """
    offsets = prefix_lens.unsqueeze(1) + torch.arange(nodes, device=prefix_lens.device)
    slots = table[requests.unsqueeze(1), offsets].long()
    ids = torch.full((len(bonus), block), mask_id, dtype=torch.int64, device=bonus.device)
    ids[:, 0] = bonus
    return RoundBlock(
        ids=ids, positions=offsets[:, :block].contiguous(), slots=slots[:, :block].contiguous(), node_slots=slots
    )
