"""What a round keeps in tensors that never move: each request's slots, the trees, and the accepted paths' way on.

The draft's CUDA graph writes the trees here, the verify's graph reads them. A kernel inside a graph must not read
SGLang's own request table, which its scheduler may be writing meanwhile, so the rows in question are copied first.
Kernels do the work on a GPU and their torch twins elsewhere. Knows slots and trees; no model and no scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers
from jetspec_engine.sglang_backend.node_paths import node_paths
from jetspec_engine.sglang_backend.round_block import RoundBlock, lay_block
from jetspec_engine.sglang_backend.table_attention import table_attention_reference
from jetspec_engine.sglang_backend.tree_round import Outcome, forced, outcome
from jetspec_engine.tree.accept_batched import AcceptedBatch, accept_greedy_batched
from jetspec_engine.tree.batched import TreeBatch, build_best_first_batched


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """Sizes that are fixed when a server starts.

    Attributes:
        requests: R, most of a batch, padding included.
        rows: numbers of verify rows that are captured, ascending.
        depth: D of the head.
        width: W, most candidates of a depth.
        row_width: slots in a row of SGLang's request table.
        heads, head_width: query heads of this rank and their width.
    """

    requests: int
    rows: tuple[int, ...]
    depth: int
    width: int
    row_width: int
    heads: int
    head_width: int


class RoundState:
    """Static tensors of one worker's rounds.

    Args:
        shape: their sizes.
        device: where they are.
        has_kernels: run kernels, which a GPU or Triton's interpreter can; else their twins.

    Attributes:
        is_linear: the next verify is of a chain, whatever trees were drafted.
        prefix_lens: (R,) int64 committed tokens.
    """

    def __init__(self, shape: RoundShape, device: Any, *, has_kernels: bool) -> None:
        self.shape, self.is_linear, self._has_kernels = shape, False, has_kernels
        self._table = torch.zeros((shape.requests, shape.row_width), dtype=torch.int32, device=device)
        self._starts = torch.arange(shape.requests, device=device) * shape.row_width
        self.prefix_lens = torch.zeros(shape.requests, dtype=torch.int64, device=device)
        self._frames = {rows: self._allocate(rows, device) for rows in shape.rows}
        self._chain = torch.arange(shape.depth + 1, device=device)
        self._rows = shape.rows[-1]
        self._settings: TreeConfig | None = None
        if has_kernels:
            from jetspec_engine.sglang_backend.kernels.verify_scratch import VerifyScratch

            self._scratch = VerifyScratch.allocate(
                rows=shape.requests * shape.rows[-1], heads=shape.heads, width=shape.head_width,
                max_context=shape.row_width, device=device,
            )  # fmt: skip

    def _allocate(self, rows: int, device: Any) -> TreeBuffers:
        shape = self.shape
        frame = TreeBuffers.allocate(
            requests=shape.requests, nodes=rows, depth=shape.depth, width=shape.width, device=device
        )
        # A capture verifies what stands here before any draft: every node alone.
        frame.path.copy_(torch.arange(rows, device=device).reshape(1, -1, 1).expand_as(frame.path))
        frame.trees.parents.fill_(-1)
        return frame

    def set_tree(self, tree: TreeConfig) -> None:
        """Draft by these settings from the next build on, in stream order. No host sync.

        Args:
            tree: ``LINEAR`` also makes the next verify one of a chain.
        """
        self.is_linear = tree == LINEAR
        if tree != self._settings:
            self._widest.write_settings(tree)
            self._settings = tree

    def stage(self, req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor, rows: int) -> None:
        """Take over a batch before its verify. No host sync.

        Args:
            req_to_token: SGLang's request table, (any, row_width) int32.
            req_pool_indices: (r,) rows of the batch, padding included.
            prefix_lens: (r,) committed tokens.
            rows: verify rows of each request, one of the captured numbers.
        """
        count = req_pool_indices.shape[0]
        self._rows = rows
        frame = self._frames[rows]
        if self._has_kernels:
            from jetspec_engine.sglang_backend.kernels.stage_batch import stage_batch

            stage_batch(
                req_to_token, req_pool_indices, prefix_lens, slots=self._table, lens=self.prefix_lens,
                source=self._widest, frame=frame, chain=len(self._chain) if self.is_linear else None,
            )  # fmt: skip
            return
        torch.index_select(req_to_token, 0, req_pool_indices, out=self._table[:count])
        self.prefix_lens[:count].copy_(prefix_lens)
        if self.is_linear:
            chain = self._chain
            frame.trees.depths[:count, : len(chain)] = chain
            frame.path[:count, : len(chain)] = torch.minimum(chain, chain.unsqueeze(1)).int()
        elif frame is not self._widest:
            self._copy_first(count, frame)

    def lay_block(
        self, bonus: Tensor, prefix_lens: Tensor, requests: Tensor, table: Tensor, *, rows: int, mask_id: int
    ) -> RoundBlock:
        """Begin a round of a batch; arguments as ``round_block.lay_block``'s.

        Args:
            rows: verify rows of each request.
        """
        block = self.shape.depth + 1
        sizes = {"block": block, "nodes": max(block, rows), "mask_id": mask_id}
        if not self._has_kernels:
            return lay_block(bonus, prefix_lens, requests, table, **sizes)
        from jetspec_engine.sglang_backend.kernels import draft_block

        return draft_block.lay_block(bonus, prefix_lens, requests, table, **sizes)

    def build(self, anchors: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        """Build the trees of requests 0, 1, ... by the settings. Capturable; no host sync.

        Args:
            anchors: (r,) int64 root tokens.
            tokens, logprobs: (r, D, W) candidates.
        """
        count = len(anchors)
        into = _first(self._widest, count)
        if self._has_kernels:
            from jetspec_engine.sglang_backend.kernels.build_trees import build_trees

            build_trees(anchors, tokens, logprobs, lengths=self.prefix_lens[:count], into=into)
            return
        settings = into.settings
        trees = build_best_first_batched(
            anchors, tokens, logprobs, num_nodes=self.shape.rows[-1], width=settings[0].long(),
            budget=settings[1].long(), keep_spine=settings[5] != 0,
        )  # fmt: skip
        for item in fields(trees):
            getattr(into.trees, item.name).copy_(getattr(trees, item.name))
        into.path.copy_(node_paths(trees, self.shape.depth))
        into.positions.copy_(self.prefix_lens[:count].unsqueeze(1) + trees.depths)

    def tokens_and_positions(self, count: int, rows: int) -> tuple[Tensor, Tensor]:
        """Return the (count, rows) int64 tokens of the drafted nodes and their absolute positions, as views."""
        widest = self._widest
        return widest.trees.tokens[:count, :rows], widest.positions[:count, :rows]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *, scale: float, window: int
    ) -> Tensor:
        """Attend to every node's list of keys. Capturable.

        Args:
            query: (r * rows, H, F) contiguous.
            keys, values: (S, K, F) the pool, the nodes' own already written.
            slots: (r * rows,) int64 the nodes' own.
            scale: of the scores.
            window: keys before itself that a node sees, -1 for all.

        Returns:
            (r * rows, H, F).
        """
        frame = self._frames[self._rows]
        count = len(slots) // self._rows
        depths, path = frame.trees.depths[:count], frame.path[:count]
        if self._has_kernels:
            from jetspec_engine.sglang_backend.kernels.verify_attention import Prefix, verify_attention

            prefix = Prefix(indices=self._table.view(-1), starts=self._starts[:count], lengths=self.prefix_lens[:count])
            return verify_attention(
                query, keys, values, out=torch.empty_like(query), prefix=prefix, slots=slots.view(count, -1),
                path=path, depths=depths, scale=scale, window=window, scratch=self._scratch,
            )  # fmt: skip
        return table_attention_reference(
            query.view(count, self._rows, *query.shape[1:]), keys, values, table=self._table,
            prefix_lens=self.prefix_lens, path=path, depths=depths, scale=scale, window=window,
        ).view_as(query)  # fmt: skip

    def accept(self, target_ids: Tensor) -> Outcome:
        """Walk the trees of the last verify greedily.

        Args:
            target_ids: (r, rows) int64 contiguous, the target's argmax at each node.
        """
        trees, depth = self.trees(len(target_ids)), self.shape.depth
        if not self._has_kernels:
            return outcome(trees, accept_greedy_batched(trees, target_ids, depth))
        from jetspec_engine.sglang_backend.kernels.accept_walk import accept_walk

        return accept_walk(trees, target_ids, into=self._new_outcome(len(target_ids)))

    def accept_by_decree(self, target_ids: Tensor, num_drafts: int) -> Outcome:
        """Accept so many drafts of every tree whatever the target says; arguments as ``tree_round.forced``'s."""
        count = len(target_ids)
        trees, links = self.trees(count), self.paths(count)
        if not self._has_kernels:
            return outcome(trees, forced(trees, links, target_ids, num_drafts))
        from jetspec_engine.sglang_backend.kernels.forced_walk import forced_walk

        return forced_walk(trees, links, target_ids, num_drafts, into=self._new_outcome(count))

    def trees(self, count: int) -> TreeBatch:
        """Return the first trees of the last verify, as views."""
        return _first(self._frames[self._rows], count).trees

    def paths(self, count: int) -> Tensor:
        """Return (count, rows, D + 1) int32, the path to each node of the last verify, as a view."""
        return self._frames[self._rows].path[:count]

    @property
    def _widest(self) -> TreeBuffers:
        return self._frames[self.shape.rows[-1]]

    def _new_outcome(self, count: int) -> Outcome:
        return Outcome.allocate(requests=count, depth=self.shape.depth, device=self.prefix_lens.device)

    def _copy_first(self, count: int, frame: TreeBuffers) -> None:
        """Give a smaller frame the first nodes of the drafted trees: all of them, as the budget is no larger."""
        rows = frame.trees.tokens.shape[1]
        for name in ("tokens", "parents", "depths", "is_valid"):
            getattr(frame.trees, name)[:count].copy_(getattr(self._widest.trees, name)[:count, :rows])
        frame.path[:count].copy_(self._widest.path[:count, :rows])
        frame.trees.mask[:count].copy_(self._widest.trees.mask[:count, :rows, :rows])


class PathMover:
    """Moves accepted nodes' keys and values to where a chain's would be, all layers of a pool.

    Args:
        buffers: the pool's tensors, slots first.
        has_kernels: as for ``RoundState``.
    """

    def __init__(self, buffers: Sequence[Tensor], *, has_kernels: bool) -> None:
        self._buffers, self._rows = buffers, None
        if has_kernels:
            from jetspec_engine.sglang_backend.kernels.move_rows import RowBuffers

            self._rows = RowBuffers.of(buffers)

    def move(self, slots: Tensor, accepted: AcceptedBatch) -> None:
        """Move, in place.

        Args:
            slots: (r, N) int64 contiguous, the slot of each node, at least D + 1 of them.
            accepted: the paths.
        """
        if self._rows is not None:
            from jetspec_engine.sglang_backend.kernels.move_rows import move_accepted

            move_accepted(self._rows, slots, accepted.path, accepted.num_correct_drafts)
            return
        column = torch.arange(accepted.path.shape[1], device=slots.device)
        nodes = torch.where(accepted.path < 0, column, accepted.path)
        sources, targets = slots.gather(1, nodes).view(-1), slots[:, : len(column)].reshape(-1)
        for buffer in self._buffers:
            buffer[targets] = buffer[sources]


def _first(buffers: TreeBuffers, count: int) -> TreeBuffers:
    """Return the buffers of the first requests, as views."""
    trees = TreeBatch(**{item.name: getattr(buffers.trees, item.name)[:count] for item in fields(buffers.trees)})
    names = ("path", "positions", "ids", "values", "caps")
    return replace(buffers, trees=trees, **{name: getattr(buffers, name)[:count] for name in names})
