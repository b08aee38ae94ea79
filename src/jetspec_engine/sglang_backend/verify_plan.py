"""What one verify needs, in tensors that never move: each request's slots, and the trees that were drafted.

The draft's CUDA graph writes the trees here, the verify's graph reads them; a kernel inside a graph must not read
SGLang's own request table, which its scheduler may be writing meanwhile, so the rows in question are copied first.
Knows slots and trees; no model and no scheduler.
"""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.sglang_backend.node_lists import node_paths
from jetspec_engine.tree.batched import TreeBatch


class VerifyPlan:
    """Static tensors for at most R requests of at most N nodes.

    Args:
        max_requests: R.
        max_nodes: N, the largest captured number of verify rows.
        depth: D, no node is deeper.
        row_width: slots in a row of SGLang's request table.
        device: of all tensors.

    Attributes:
        table: (R, row_width) int32; key j of request r lies in KV slot ``table[r, j]``, node n in
            ``table[r, prefix_lens[r] + n]``.
        prefix_lens: (R,) int64, committed keys.
        trees: the trees, padded to N nodes; the first b nodes of a tree with at most b are all of it.
        is_linear: the next verify is of a chain, whatever trees were drafted.
        path: (R, N, D + 1) int64, a node's ancestors by depth, itself last and from there on.
    """

    def __init__(self, *, max_requests: int, max_nodes: int, depth: int, row_width: int, device: Any) -> None:
        def full(*shape: int, value: Any = 0, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full((max_requests, *shape), value, dtype=dtype, device=device)

        self.depth = depth
        self.is_linear = False
        self.table = full(row_width, dtype=torch.int32)
        self.prefix_lens = full()
        itself = torch.arange(max_nodes, device=device)
        self.trees = TreeBatch(
            tokens=full(max_nodes), parents=full(max_nodes, value=-1), depths=full(max_nodes),
            logprobs=full(max_nodes, value=float("-inf"), dtype=torch.float32), num_nodes=full(),
            is_valid=full(max_nodes, value=False, dtype=torch.bool), first_child=full(max_nodes, value=-1),
            next_sibling=full(max_nodes, value=-1),
            mask=(itself == itself.unsqueeze(1)).expand(max_requests, -1, -1).clone(),
        )  # fmt: skip
        self.path = itself.reshape(1, -1, 1).repeat(max_requests, 1, depth + 1)
        self._chain = torch.arange(depth + 1, device=device)

    def stage(self, req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> None:
        """Copy the rows of a batch. No host sync; must be ordered before the forward that reads them.

        Args:
            req_to_token: SGLang's request table, (rows, row_width) int32.
            req_pool_indices: (r,) rows of the batch, r at most R.
            prefix_lens: (r,) committed keys.
        """
        count = req_pool_indices.shape[0]
        torch.index_select(req_to_token, 0, req_pool_indices, out=self.table[:count])
        self.prefix_lens[:count].copy_(prefix_lens)
        if self.is_linear:
            chain = self._chain
            self.trees.depths[:count, : len(chain)] = chain
            self.path[:count, : len(chain)] = torch.minimum(chain, chain.unsqueeze(1))

    def store(self, trees: TreeBatch) -> None:
        """Keep a batch of trees of N nodes, as requests 0, 1, ... Capturable; no host sync."""
        count = trees.tokens.shape[0]
        for item in fields(trees):
            getattr(self.trees, item.name)[:count].copy_(getattr(trees, item.name))
        self.path[:count].copy_(node_paths(trees, self.depth))

    def view(self, requests: int, nodes: int) -> TreeBatch:
        """Return the first ``nodes`` nodes of the first trees, as views."""
        held = self.trees
        mask = held.mask[:requests, :nodes, :nodes]
        cut = {item.name: getattr(held, item.name)[:requests] for item in fields(held) if item.name != "mask"}
        return TreeBatch(
            **{name: value[:, :nodes] if value.ndim > 1 else value for name, value in cut.items()}, mask=mask
        )
