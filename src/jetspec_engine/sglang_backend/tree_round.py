"""What follows a verify: the tokens of the accepted paths, and acceptance by decree for measurements.

All on the device, shapes fixed, no host sync. Knows trees; no model.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetspec_engine.tree.accept_batched import AcceptedBatch
from jetspec_engine.tree.batched import TreeBatch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outcome:
    """What R requests gain in a round, as SGLang's scheduler takes it.

    Attributes:
        accepted: path, counts and bonus.
        tokens: (R, D + 1) int64 accepted drafts, then the bonus token; past that 0.
        lens: (R,) int32 tokens gained, the bonus included.
    """

    accepted: AcceptedBatch
    tokens: Tensor
    lens: Tensor

    @classmethod
    def allocate(cls, *, requests: int, depth: int, device: torch.device | str) -> Self:
        """Reserve the outcome of R requests; nothing in it means anything yet."""
        path, tokens = torch.empty((2, requests, depth + 1), dtype=torch.int64, device=device).unbind()
        counts, bonus = torch.empty((2, requests), dtype=torch.int64, device=device).unbind()
        accepted = AcceptedBatch(path=path, num_correct_drafts=counts, bonus=bonus)
        lens = torch.empty(requests, dtype=torch.int32, device=device)
        return cls(accepted=accepted, tokens=tokens, lens=lens)


def outcome(trees: TreeBatch, accepted: AcceptedBatch) -> Outcome:
    """Read the accepted paths' tokens off their trees."""
    column = torch.arange(accepted.path.shape[1], device=accepted.path.device)
    count = accepted.num_correct_drafts.unsqueeze(1)
    drafts = torch.nn.functional.pad(trees.tokens.gather(1, accepted.path.clamp(min=0))[:, 1:], (0, 1))
    tokens = torch.where(column < count, drafts, torch.where(column == count, accepted.bonus.unsqueeze(1), 0))
    return Outcome(accepted=accepted, tokens=tokens, lens=(accepted.num_correct_drafts + 1).to(torch.int32))


def forced(trees: TreeBatch, paths: Tensor, target_ids: Tensor, num_drafts: int) -> AcceptedBatch:
    """Accept a given number of drafts whatever the target says, as SGLANG_SIMULATE_ACC_LEN asks.

    Args:
        trees: R trees of N nodes.
        paths: (R, N, D + 1) int, ``node_paths`` of the trees.
        target_ids: (R, N) int64; the last node's is the bonus token.
        num_drafts: accepted in each tree, along the path to the first node that deep; a tree that is not that deep
            accepts as many as it has.
    """
    reached = trees.depths.masked_fill(trees.depths > num_drafts, -1)
    node = reached.argmax(dim=1, keepdim=True)
    num_correct = trees.depths.gather(1, node).squeeze(1)
    nodes = paths.gather(1, node.unsqueeze(2).expand(-1, -1, paths.shape[2])).squeeze(1).long()
    column = torch.arange(nodes.shape[1], device=nodes.device)
    return AcceptedBatch(
        path=torch.where(column <= num_correct.unsqueeze(1), nodes, -1), num_correct_drafts=num_correct,
        bonus=target_ids.gather(1, node).squeeze(1),
    )  # fmt: skip
