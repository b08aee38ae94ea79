"""The training loop: time-boxed, resumable, checkpointed; it reports through a callback and returns its curve.

Batches and anchors follow from the seed, the epoch and the step alone, so a run that is cut and resumed takes the
same steps as one that is not (bitwise on one device when ``max_steps`` is the clock).
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.errors import ArtifactError, EngineError
from jetspec_engine.training.agreement import agreement
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import HeadBlocks, Parameters
from jetspec_engine.training.optimizer import Optimizer
from jetspec_engine.training.settings import TrainSettings
from jetspec_engine.training.state_file import read_state, write_state
from jetspec_engine.training.step import TrainStep
from jetspec_engine.training.text_pool import TextPool

STEP_SEED = 1_000_003


@dataclass
class Position:
    """Where a run stands: what a resumed part continues from."""

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    elapsed_s: float = 0.0
    pool_rows: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


class TrainingRun:
    """One head's training state over one pool of text.

    Args:
        parameters: initial values; trained in float32 on the target's device.
        held_out: a pool never trained on, looked at whenever the curve gets a point; None skips that.
    """

    def __init__(
        self,
        head: HeadBlocks,
        parameters: Parameters,
        target: FrozenTarget,
        *,
        pool: TextPool,
        held_out: TextPool | None,
        settings: TrainSettings,
    ) -> None:
        self.head, self.target, self.pool, self.held_out, self.settings = head, target, pool, held_out, settings
        self.parameters = {
            name: value.detach().to(target.device, torch.float32).clone().requires_grad_()
            for name, value in parameters.items()
        }
        self.optimizer = Optimizer(
            self.parameters, use_muon=settings.optimizer == "muon", weight_decay=settings.weight_decay
        )
        self.position = Position(pool_rows=len(pool))
        self._order: list[Tensor] = []
        self._order_epoch = -1
        self._step = TrainStep(head, self.parameters, target, self.optimizer, settings)

    def save(self, path: Path) -> None:
        """Write parameters, optimizer state and position to one file, atomically."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
        tensors |= {f"optimizer/{name}": value for name, value in self.optimizer.state().items()}
        tensors["feature_scale"] = self.head.feature_scale
        write_state(path, tensors, {"position": vars(self.position), "head": self.head.config.to_mapping()})

    def restore(self, path: Path) -> None:
        """Continue from ``save``'s file; a pool of another size starts its next epoch.

        Raises:
            ArtifactError: no such file, not a checkpoint, or one of another head shape.
        """
        try:
            tensors, plain = read_state(path, self.target.device)
            # Compared as it was written: JSON has no tuples.
            if plain["head"] != json.loads(json.dumps(self.head.config.to_mapping())):
                raise ArtifactError(f"training checkpoint: {path}: it holds a head of another shape")
            with torch.no_grad():
                for name, value in self.parameters.items():
                    value.copy_(tensors[f"parameters/{name}"])
            self.optimizer.load_state(
                {name.removeprefix("optimizer/"): value for name, value in tensors.items() if "optimizer/" in name}
            )
            self.head.feature_scale = tensors["feature_scale"]
            self.position = Position(**plain["position"])
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ArtifactError(f"training checkpoint: {path}: {error}") from error
        if self.position.pool_rows != len(self.pool):
            self.position.epoch += 1
            self.position.cursor = 0
            self.position.pool_rows = len(self.pool)

    def run(
        self,
        on_point: Callable[[dict[str, Any]], None],
        *,
        seconds: float = math.inf,
        max_steps: int | None = None,
        checkpoint: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Position:
        """Train until the settings' time or steps are up, or this call's ``seconds`` or ``max_steps``.

        Args:
            on_point: called with every point of the curve (step, loss, lr, agreement by depth, ...).
            checkpoint: written every ``checkpoint_every_s`` and at the end.

        Raises:
            EngineError: the loss is no longer finite.
        """
        s, here = self.settings, self.position
        started, before = clock(), here.elapsed_s
        saved = logged = started
        first = here.step
        while clock() - started < seconds and (max_steps is None or here.step - first < max_steps):
            here.elapsed_s = before + clock() - started
            if self._progress() >= 1:
                break
            self.train_step()
            if here.step % s.log_every == 0:
                now = clock()
                on_point(self._point((now - logged) / s.log_every))
                logged = clock()
            if checkpoint is not None and s.checkpoint_every_s and clock() - saved > s.checkpoint_every_s:
                self.save(checkpoint)
                saved = clock()
        here.elapsed_s = before + clock() - started
        if checkpoint is not None:
            self.save(checkpoint)
        return here

    def _progress(self) -> float:
        s, here = self.settings, self.position
        if s.max_steps is not None:
            return here.step / s.max_steps
        return here.elapsed_s / s.seconds

    def learning_rate_share(self) -> float:
        """Return the schedule's factor: a linear warm-up, a plateau, a linear fall to ``lr_end_share``."""
        s = self.settings
        warm = min(1.0, (self.position.step + 1) / max(1, s.warmup_steps))
        done = (self._progress() - s.decay_from) / max(1e-9, 1 - s.decay_from)
        return warm * (1 - (1 - s.lr_end_share) * min(1.0, max(0.0, done)))

    def _next_rows(self) -> Tensor:
        here = self.position
        if self._order_epoch != here.epoch:
            self._order = self.pool.epoch_order(self.settings.batch, self.settings.seed + 7919 * here.epoch)
            self._order_epoch = here.epoch
        rows = self._order[here.cursor]
        here.cursor += 1
        if here.cursor == len(self._order):
            here.epoch, here.cursor = here.epoch + 1, 0
        return rows

    def train_step(self) -> None:
        """Take one step over the next batch."""
        rows = self._next_rows()
        seed = self.settings.seed + STEP_SEED * self.position.step
        anchors = self.pool.draw_anchors(rows, [count for count, _ in self._step.sizes], seed)
        is_sharpened = self._progress() >= self.settings.sharpen_from
        self._step.take(self.pool.batch(rows), anchors, self.learning_rate_share(), is_sharpened=is_sharpened)
        self.position.step += 1

    def _point(self, step_s: float) -> dict[str, Any]:
        here = self.position
        point: dict[str, Any] = {"step": here.step, "epoch": here.epoch, "elapsed_s": round(here.elapsed_s, 1)}
        point |= {"lr": self.settings.lr * self.learning_rate_share(), "step_ms": round(1e3 * step_s, 2)}
        point |= self._step.tally.take()
        if not math.isfinite(point["loss"]):
            raise EngineError(f"training: loss {point['loss']} at step {here.step}", hint="try a lower --lr")
        if self.held_out is not None and len(self.held_out):
            point["held_out"] = agreement(self.head, self.parameters, self.target, self.held_out)
        here.curve.append(point)
        return point
