"""Static buffers of a round's trees: what a captured graph writes and the verify, accept and state kernels read.

Settings live on the device too, so that width, budget, rule, beta, g0 and spine change between replays of one graph.
Knows no kernel and no engine.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetspec_engine.config import TREE_RULES, TreeConfig
from jetspec_engine.tree.batched import TreeBatch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TreeBuffers:
    """R trees of at most N nodes, D levels of drafts and W candidates a level.

    Attributes:
        trees: as the batched builder gives them.
        path: (R, N, D + 1) int32 nodes from the root to each node, itself at its depth and from there on.
        positions: (R, N) int64 committed tokens + depth.
        settings: (6,) float64 width, budget, rule (its place in ``TREE_RULES``), beta, g0, spine.
        ids, values, caps: (R, D, W) int64, (R, D, W) float64 and (R, D) int32, candidates in order; the builder's own.
    """

    trees: TreeBatch
    path: Tensor
    positions: Tensor
    settings: Tensor
    ids: Tensor
    values: Tensor
    caps: Tensor

    @classmethod
    def allocate(cls, *, requests: int, nodes: int, depth: int, width: int, device: torch.device | str) -> Self:
        """Reserve buffers; nothing in them means anything before a build, and ``write_settings`` before that."""

        def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        trees = TreeBatch(
            tokens=whole(requests, nodes),
            parents=whole(requests, nodes),
            depths=whole(requests, nodes),
            logprobs=whole(requests, nodes, dtype=torch.float32),
            num_nodes=whole(requests),
            is_valid=whole(requests, nodes, dtype=torch.bool),
            first_child=whole(requests, nodes),
            next_sibling=whole(requests, nodes),
            mask=whole(requests, nodes, nodes, dtype=torch.bool),
        )
        return cls(
            trees=trees,
            path=whole(requests, nodes, depth + 1, dtype=torch.int32),
            positions=whole(requests, nodes),
            settings=whole(6, dtype=torch.float64),
            ids=whole(requests, depth, width),
            values=whole(requests, depth, width, dtype=torch.float64),
            caps=whole(requests, depth, dtype=torch.int32),
        )

    def write_settings(self, config: TreeConfig) -> None:
        """Set what the next builds follow. Copies from the host without waiting; not for use inside a capture.

        Args:
            config: a width or budget beyond the buffers' is cut to them.
        """
        depth = self.ids.shape[1]
        rule = TREE_RULES.index(config.rule)
        row = (config.width, config.resolve_budget(depth), rule, config.beta, config.g0, config.keep_spine)
        self.settings.copy_(torch.tensor(row, dtype=torch.float64), non_blocking=True)
