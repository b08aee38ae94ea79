"""One training step: read a batch with the target, run its blocks, distil, update.

Runs eagerly, or on CUDA as one captured graph per batch shape: a step is a thousand small launches, and launching
them one by one takes longer than running them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import BlockGroup, HeadBlocks, Parameters
from jetspec_engine.training.losses import distil, loss_rows
from jetspec_engine.training.optimizer import Optimizer
from jetspec_engine.training.settings import TrainSettings
from jetspec_engine.training.text_pool import Batch, send


class Tally:
    """Sums of a stretch of steps, on the device until they are read."""

    def __init__(self, depth: int, device: torch.device) -> None:
        self._sums = torch.zeros(3, depth, device=device)
        self._loss = torch.zeros((), device=device)
        self._norm = torch.zeros((), device=device)
        self._steps = torch.zeros((), device=device)

    def add(self, loss: Tensor, norm: Tensor, inside: list[Tensor], kls: list[Tensor], hits: list[Tensor]) -> None:
        """Add one step, in place: its loss, gradient norm, and per group (B, A, d) what counts, KL and agreement."""
        self._loss += loss
        self._norm.copy_(norm)
        self._steps += 1
        for is_in, kl, hit in zip(inside, kls, hits, strict=True):
            sums = torch.stack([is_in.sum((0, 1)).float(), (kl * is_in).sum((0, 1)), (hit & is_in).sum((0, 1)).float()])
            self._sums[:, : sums.shape[1]] += sums

    def take(self) -> dict[str, Any]:
        """Read and clear: mean loss, last gradient norm, KL and agreement by depth. Syncs with the host."""
        count = self._sums[0].clamp(min=1)
        out = {
            "loss": float(self._loss / self._steps.clamp(min=1)),
            "grad_norm": float(self._norm),
            "kl_by_depth": [round(x, 4) for x in (self._sums[1] / count).tolist()],
            "agree_by_depth": [round(x, 4) for x in (self._sums[2] / count).tolist()],
        }
        for total in (self._sums, self._loss, self._steps):
            total.zero_()
        return out


class TrainStep:
    """Takes steps and tallies them.

    Attributes:
        sizes: (anchors a conversation, drafted depth) of each group of blocks.
    """

    def __init__(
        self,
        head: HeadBlocks,
        parameters: Parameters,
        target: FrozenTarget,
        optimizer: Optimizer,
        settings: TrainSettings,
    ) -> None:
        self.head, self.parameters, self.target = head, parameters, target
        self.optimizer, self.settings = optimizer, settings
        self._plain = replace(settings, teacher_temperature=1.0, reach_floor=1.0)
        depth = head.config.block_size - 1
        groups = ((settings.short_anchors, min(settings.short_depth, depth)), (settings.full_anchors, depth))
        self.sizes = [(count, depth) for count, depth in groups if count]
        self.tally = Tally(depth, target.device)
        self._is_graphed = target.device.type == "cuda" and settings.is_graphed
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], tuple[Any, list[Tensor]]] = {}

    def take(self, batch: Batch, anchors: Sequence[Tensor], rate_share: float, *, is_sharpened: bool) -> None:
        """Take one step. No host sync on CUDA.

        Args:
            anchors: (B, count) int64 a group, as ``sizes`` says. rate_share: the schedule's factor.
            is_sharpened: whether the settings' teacher temperature and reach floor apply yet.
        """
        share = send(torch.tensor(rate_share, dtype=torch.float32), self.target.device)
        inputs = [batch.tokens, batch.lengths, share, *anchors]
        key = (*batch.tokens.shape, is_sharpened)
        if not self._is_graphed or key not in self._seen:
            # The first batch of a shape also warms up what a capture must not do: compiling and planning.
            self._seen.add(key)
            self._take(inputs, is_sharpened=is_sharpened)
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(inputs, is_sharpened=is_sharpened)
        graph, static = self._graphs[key]
        for held, fresh in zip(static, inputs, strict=True):
            held.copy_(fresh, non_blocking=True)
        graph.replay()

    def _capture(self, inputs: list[Tensor], *, is_sharpened: bool) -> tuple[Any, list[Tensor]]:
        static = [x.clone() for x in inputs]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._take(static, is_sharpened=is_sharpened)
        return graph, static

    def _take(self, inputs: list[Tensor], *, is_sharpened: bool) -> None:
        s, head, p = self.settings if is_sharpened else self._plain, self.head, self.parameters
        tokens, lengths, share, *anchors = inputs
        groups = [BlockGroup(a, depth + 1) for a, (_, depth) in zip(anchors, self.sizes, strict=True)]
        states, last = self.target.read(tokens, head.config.target_layer_ids)
        drafted = head.run(p, head.context(p, states), tokens, groups)
        rows = loss_rows(anchors, [depth for _, depth in self.sizes], lengths, s.depth_decay)
        lm_head = self.target.lm_head.to(head.dtype)
        loss, kls, hits = distil(last.to(head.dtype), lm_head, rows, [d[:, :, 1:] for d in drafted], s)
        grads = torch.autograd.grad(loss, list(p.values()))
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, (s.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step(dict(zip(p, grads, strict=True)), s.lr * share, s.adam_lr * share)
        self.tally.add(loss.detach(), norm, [r.weight > 0 for r in rows], kls, hits)
