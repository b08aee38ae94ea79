"""Every node's own key list: the committed prefix, then its ancestors from the root on, then itself.

A node's logits may depend on nothing but this list, which is the same for a tree, a chain and any split of a text into
rounds. Knows slots of a KV pool and trees; no kernel and no engine.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.tree.batched import TreeBatch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeLists:
    """Key lists of R trees of N nodes.

    Attributes:
        path: (R, N, D + 1) int64 KV slots of the node's ancestors by depth, itself last; a padded node has its own
            slot alone. Entries past ``depths`` repeat the node's own slot and are never keys.
        depths: (R, N) int64, so ``depths + 1`` entries of ``path`` are keys.
    """

    path: Tensor
    depths: Tensor


def node_lists(trees: TreeBatch, slots: Tensor, max_depth: int) -> NodeLists:
    """Lay out the ancestors of every node.

    Args:
        trees: R trees of N nodes.
        slots: (R, N) int64, the KV slot each node's key and value are written to.
        max_depth: D, no node is deeper.

    Returns:
        The lists, on the trees' device; R, N and D alone decide every shape. No host sync.
    """
    path = node_paths(trees, max_depth)
    return NodeLists(path=slots.unsqueeze(1).expand(-1, slots.shape[1], -1).gather(2, path), depths=trees.depths)


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


def attention_reference(
    query: Tensor, keys: Tensor, values: Tensor, *, prefix: list[Tensor], lists: NodeLists, scale: float
) -> Tensor:
    """Attend to each node's list, one node at a time, in float32: the slow twin of the kernel.

    Args:
        query: (R, N, H, F) queries, F the head's width.
        keys, values: (S, K, F) the pool; H is a multiple of K.
        prefix: R tensors of the prefix's slots, in order.
        lists: of the same trees.
        scale: of the scores.

    Returns:
        (R, N, H, F) float32. Syncs with the host at every node.
    """
    group = query.shape[2] // keys.shape[1]
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    for request, node in [(r, n) for r in range(query.shape[0]) for n in range(query.shape[1])]:
        own = lists.path[request, node, : int(lists.depths[request, node]) + 1]
        slots = torch.cat([prefix[request], own])
        key = keys[slots].float().repeat_interleave(group, dim=1)
        value = values[slots].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("hf,shf->hs", query[request, node].float(), key) * scale
        out[request, node] = torch.einsum("hs,shf->hf", scores.softmax(dim=-1), value)
    return out
