"""The text a head learns from: conversations of one user turn and the target's answer, as token ids.

Knows how to keep, split, save and batch them; not how they were written.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from jetspec_engine.errors import ArtifactError
from jetspec_engine.training.state_file import read_state, write_state


@dataclass(frozen=True)
class Batch:
    """Conversations of similar length: tokens (B, T) int64 zero-padded, lengths and answer_starts (B,) int64."""

    tokens: Tensor
    lengths: Tensor
    answer_starts: Tensor


@dataclass
class TextPool:
    """Conversations: tokens (R, T) int32 zero-padded, and (R,) int64 lengths, answer starts and is_greedy (bool).

    Tokens may live on a GPU; the three vectors are on the CPU.
    """

    tokens: Tensor
    lengths: Tensor
    answer_starts: Tensor
    is_greedy: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, rows: Tensor) -> "TextPool":
        """Return the conversations of an index or bool tensor on the CPU."""
        on_device = rows.to(self.tokens.device)
        return TextPool(self.tokens[on_device], self.lengths[rows], self.answer_starts[rows], self.is_greedy[rows])

    def split(self, num_held_out: int, seed: int) -> tuple["TextPool", "TextPool"]:
        """Return (the rest, held out); what is held out is greedy and drawn by the seed."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        held = order[self.is_greedy[order]][:num_held_out]
        is_held = torch.zeros(len(self), dtype=torch.bool)
        is_held[held] = True
        return self.select(~is_held), self.select(held)

    def num_answer_tokens(self) -> int:
        """Count the answers' tokens."""
        return int((self.lengths - self.answer_starts).sum())

    def save(self, path: Path) -> None:
        """Write the pool to one file."""
        write_state(path, vars(self), {})

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "TextPool":
        """Read a pool written by ``save``."""
        try:
            parts, _ = read_state(path, torch.device("cpu"))
            pool = cls(**parts)
        except (OSError, TypeError, ValueError) as error:
            raise ArtifactError(f"text pool: {path}: {error}") from error
        pool.tokens = pool.tokens.to(device)
        return pool

    def epoch_order(self, batch: int, seed: int) -> list[Tensor]:
        """Return the epoch's batches as row indices: shuffled, of similar lengths inside, in random order.

        The last rows that fill no batch are left out; a pool smaller than a batch is one batch.
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if len(order) <= batch:
            return [order]
        group = batch * 64
        batches: list[Tensor] = []
        for start in range(0, len(order), group):
            part = order[start : start + group]
            part = part[self.lengths[part].argsort()]
            batches += [b for b in torch.split(part, batch) if len(b) == batch]
        random.Random(seed).shuffle(batches)
        return batches

    def batch(self, rows: Tensor) -> Batch:
        """Gather rows, cut to the longest of them (rounded up to 32, so that few shapes occur)."""
        device = self.tokens.device
        width = min(self.tokens.shape[1], -(-int(self.lengths[rows].max()) // 32) * 32)
        return Batch(
            tokens=self.tokens[send(rows, device), :width].long(),
            lengths=send(self.lengths[rows], device),
            answer_starts=send(self.answer_starts[rows], device),
        )

    def draw_anchors(self, rows: Tensor, counts: Sequence[int], seed: int) -> list[Tensor]:
        """Draw anchors (B, count) a group on the device, stratified over the answer so that they spread evenly.

        Every anchor leaves at least one token after it. The same rows and seed give the same anchors anywhere.
        """
        generator = torch.Generator().manual_seed(seed)
        starts = self.answer_starts[rows].double()
        span = (self.lengths[rows] - 1 - self.answer_starts[rows]).double()
        drawn = []
        for count in counts:
            strata = torch.arange(count, dtype=torch.float64) + torch.rand(
                len(rows), count, generator=generator, dtype=torch.float64
            )
            anchors = starts[:, None] + (strata / count * span[:, None]).floor()
            drawn.append(send(anchors.long(), self.tokens.device))
        return drawn


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for what the device is doing."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def join(pools: Sequence[TextPool]) -> TextPool:
    """Concatenate pools, padding to the widest."""
    width = max(pool.tokens.shape[1] for pool in pools)
    padded = [torch.nn.functional.pad(pool.tokens, (0, width - pool.tokens.shape[1])) for pool in pools]
    return TextPool(
        torch.cat(padded),
        torch.cat([pool.lengths for pool in pools]),
        torch.cat([pool.answer_starts for pool in pools]),
        torch.cat([pool.is_greedy for pool in pools]),
    )
