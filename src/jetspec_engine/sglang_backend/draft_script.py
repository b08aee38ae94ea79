"""Drafts from a file in place of the head's: what a depth or a position of the text offers, and how likely.

For measuring and for tests: with dummy weights a head's own drafts make no deep trees, and a test wants every path to
be walked. The head still runs, so a round costs what it costs. Tables are static, so they change under a captured
graph. Knows no model.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.errors import ConfigError


class DraftScript:
    """Candidates by absolute position, overlaid on a head's.

    Args:
        positions: rows of the tables.
        width: W of the tables.
        device: of the tables.
    """

    def __init__(self, *, positions: int, width: int, device: Any) -> None:
        self._ids = torch.full((positions, width), -1, dtype=torch.int64, device=device)
        self._logprobs = torch.full((positions, width), float("nan"), device=device)
        self._by_depth = torch.full((positions, width), float("nan"), device=device)

    def load(self, path: Path) -> None:
        """Fill the tables from a JSON file with any of three lists of rows, each of at most W values.

        ``ids``: token ids by position, -1 keeps the head's. ``logprobs``: by position, null keeps the head's.
        ``depth_logprobs``: by draft depth, the first draft first; beaten by ``logprobs``.

        Raises:
            ConfigError: a file that cannot be read, or rows that do not fit.
        """
        try:
            given = json.loads(path.read_text())
            fresh = {
                "ids": torch.full_like(self._ids, -1), "logprobs": torch.full_like(self._logprobs, float("nan")),
                "depth_logprobs": torch.full_like(self._by_depth, float("nan")),
            }  # fmt: skip
            for name, table in fresh.items():
                for row, values in enumerate(given.get(name, [])):
                    kept = [float("nan") if value is None else value for value in values]
                    table[row, : len(kept)] = torch.tensor(kept, dtype=table.dtype)
        except (OSError, ValueError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            raise ConfigError(f"draft script {path}: {error}") from error
        self._ids.copy_(fresh["ids"])
        self._logprobs.copy_(fresh["logprobs"])
        self._by_depth.copy_(fresh["depth_logprobs"])

    def overlay(self, tokens: Tensor, logprobs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the candidates with the script's in place of a head's.

        Args:
            tokens, logprobs: (R, D, W), the head's.
            positions: (R, D) int64 absolute positions of the drafts.

        Returns:
            (R, D, W) each. No host sync; capturable.
        """
        depth, width = tokens.shape[1:]
        at = positions.clamp(max=self._ids.shape[0] - 1)
        ids, by_position = self._ids[at][..., :width], self._logprobs[at][..., :width]
        by_depth = self._by_depth[:depth, :width].expand_as(logprobs)
        logprobs = torch.where(by_depth.isnan(), logprobs, by_depth)
        return torch.where(ids < 0, tokens, ids), torch.where(by_position.isnan(), logprobs, by_position)
