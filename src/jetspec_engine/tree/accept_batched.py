"""The greedy accept walk for a batch of trees on their device: fixed shapes, no host sync, no loop over depths.

A node is correct when its token is the target's choice at its parent; it is accepted when it and all of its ancestors
are correct. Equals ``accept.accept_greedy`` on every tree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.tree.batched import TreeBatch
from jetspec_engine.tree.links import NO_NODE


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AcceptedBatch:
    """What one round yields for R requests.

    Attributes:
        path: (R, D + 1) int64 node indices from the root on, padded with -1.
        num_correct_drafts: (R,) int64, so ``path[r, : num_correct_drafts[r] + 1]`` is the path.
        bonus: (R,) int64 the target's token after the path's last node, or ``accept.NON_FINITE``.
    """

    path: Tensor
    num_correct_drafts: Tensor
    bonus: Tensor


def accept_greedy_batched(trees: TreeBatch, target_ids: Tensor, max_depth: int) -> AcceptedBatch:
    """Walk every tree at once.

    Args:
        trees: R trees of N nodes.
        target_ids: (R, N) int64, the target's argmax at each node or NON_FINITE; a padded node's is ignored.
        max_depth: D, no node is deeper.

    Returns:
        Paths, counts and bonus tokens on the trees' device.
    """
    count = trees.tokens.shape[1]
    wanted = target_ids.gather(1, trees.parents.clamp(min=0))
    is_root = torch.arange(count, device=target_ids.device) == 0
    is_draft = trees.is_valid & (trees.parents >= 0)
    is_correct = is_root | (is_draft & (trees.tokens == wanted) & (wanted >= 0) & ~_repeats_a_sibling(trees))
    is_accepted = ~(trees.mask & ~is_correct.unsqueeze(1)).any(dim=-1)
    column = torch.where(is_accepted, trees.depths, max_depth + 1)  # the rest go to a spare last column
    nodes = torch.arange(count, device=target_ids.device).expand_as(column)
    path = torch.full_like(column[:, :1], NO_NODE).repeat(1, max_depth + 2).scatter_(1, column, nodes)[:, :-1]
    num_correct_drafts = is_accepted.sum(dim=1) - 1
    last = path.gather(1, num_correct_drafts.unsqueeze(1))
    return AcceptedBatch(path=path, num_correct_drafts=num_correct_drafts, bonus=target_ids.gather(1, last).squeeze(1))


def _repeats_a_sibling(trees: TreeBatch) -> Tensor:
    """Whether an elder sibling has the same token: of such a pair only the first counts."""
    is_same = (trees.parents.unsqueeze(2) == trees.parents.unsqueeze(1)) & (
        trees.tokens.unsqueeze(2) == trees.tokens.unsqueeze(1)
    )
    return is_same.tril(diagonal=-1).any(dim=-1)
