"""Every node's ancestors from the root on, then itself: with the committed prefix before them, the node's list of keys.

A node's logits may depend on nothing but that list, which is the same for a tree, a chain and any split of a text into
rounds. Knows trees; no kernel and no engine.
"""

import torch
from torch import Tensor

from jetspec_engine.tree.batched import TreeBatch


def node_paths(trees: TreeBatch, max_depth: int) -> Tensor:
    """Return every node's ancestors by their numbers.

    Args:
        trees: R trees of N nodes.
        max_depth: D, no node is deeper.

    Returns:
        (R, N, D + 1) int64: column d is the ancestor at depth d; from the node's own depth on, and everywhere for a
        padded node, the node itself. No host sync.
    """
    requests, count = trees.depths.shape
    itself = torch.arange(count, device=trees.depths.device)
    column = torch.where(trees.mask, trees.depths.unsqueeze(1), max_depth + 1)  # the rest go to a spare last column
    nodes = itself.expand(*trees.mask.shape)
    path = itself.reshape(1, -1, 1).repeat(requests, 1, max_depth + 2).scatter(2, column, nodes)[..., :-1]
    spare = torch.arange(max_depth + 1, device=itself.device) > trees.depths.unsqueeze(-1)
    return torch.where(spare, itself.reshape(1, -1, 1), path)
