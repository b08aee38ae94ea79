"""What follows a verify: the accepted path, its tokens, and where its keys and values belong.

All on the device, shapes fixed, no host sync. Knows trees and slots; no model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.tree.accept_batched import AcceptedBatch, accept_greedy_batched
from jetspec_engine.tree.batched import TreeBatch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Committed:
    """What R requests gain in a round, as SGLang's scheduler takes it.

    Attributes:
        path: (R, D + 1) int64 accepted nodes from the root on; past the end node 0.
        tokens: (R, D + 1) int64 accepted drafts, then the bonus token; past that 0.
        lens: (R,) int32 tokens gained, the bonus included.
        bonus: (R,) int64.
        sources: (R, D + 1) int64 nodes whose keys and values belong at offsets 0 .. D behind the prefix; past the end
            of the path each offset is its own source, so that a move changes nothing there.
    """

    path: Tensor
    tokens: Tensor
    lens: Tensor
    bonus: Tensor
    sources: Tensor


def commit(trees: TreeBatch, target_ids: Tensor, depth: int) -> Committed:
    """Accept greedily.

    Args:
        trees: R trees of N nodes.
        target_ids: (R, N) int64, the target's argmax at each node.
        depth: D.
    """
    return _committed(trees, accept_greedy_batched(trees, target_ids, depth), depth)


def commit_forced(trees: TreeBatch, path: Tensor, target_ids: Tensor, num_drafts: int, depth: int) -> Committed:
    """Accept a given number of drafts whatever the target says, as SGLANG_SIMULATE_ACC_LEN asks.

    Args:
        trees: R trees of N nodes.
        path: (R, N, D + 1) int64, ``node_paths`` of the trees.
        target_ids: (R, N) int64; the last node's is the bonus token.
        num_drafts: accepted in each tree, along the path to the first node that deep; a tree that is not that deep
            accepts as many as it has.
        depth: D.
    """
    reached = trees.depths.masked_fill(trees.depths > num_drafts, -1)
    node = reached.argmax(dim=1, keepdim=True)
    num_correct = trees.depths.gather(1, node).squeeze(1)
    nodes = path.gather(1, node.unsqueeze(2).expand(-1, -1, depth + 1)).squeeze(1)
    column = torch.arange(depth + 1, device=nodes.device)
    nodes = torch.where(column <= num_correct.unsqueeze(1), nodes, -1)
    bonus = target_ids.gather(1, node).squeeze(1)
    return _committed(trees, AcceptedBatch(path=nodes, num_correct_drafts=num_correct, bonus=bonus), depth)


def _committed(trees: TreeBatch, accepted: AcceptedBatch, depth: int) -> Committed:
    column = torch.arange(depth + 1, device=accepted.path.device)
    path = accepted.path.clamp(min=0)
    count = accepted.num_correct_drafts.unsqueeze(1)
    drafts = torch.nn.functional.pad(trees.tokens.gather(1, path)[:, 1:], (0, 1))
    tokens = torch.where(column < count, drafts, torch.where(column == count, accepted.bonus.unsqueeze(1), 0))
    return Committed(
        path=path,
        tokens=tokens,
        lens=(accepted.num_correct_drafts + 1).to(torch.int32),
        bonus=accepted.bonus,
        sources=torch.where(column <= count, path, column),
    )
