"""Drafts from a file in place of the head's: what a depth or a position of the text offers, and how likely.

For measuring and for tests: with dummy weights a head's own drafts make no deep trees, and a test wants every path to
be walked. The head still runs, so a round costs what it costs. Tables are static, so they change under a captured
graph. Knows no model.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.config import check_keys
from jetspec_engine.errors import ConfigError

# Beyond any vocabulary and any logarithm; within every dtype.
MOST = 1 << 31


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
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"draft script: {path}: {error}") from error
        if not isinstance(given, dict):
            raise ConfigError(f"draft script: {path}: {type(given).__name__}, expected a JSON object")
        tables = {"ids": self._ids, "logprobs": self._logprobs, "depth_logprobs": self._by_depth}
        fresh = {}
        try:
            check_keys("top level", given, tuple(tables))
            for name, table in tables.items():
                fresh[name] = _filled(name, table, given.get(name, []))
        except ConfigError as error:
            raise ConfigError(f"draft script: {path}: {error.what}", hint=error.hint) from error
        for name, table in tables.items():
            table.copy_(fresh[name])

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


def _filled(name: str, table: Tensor, rows: Any) -> Tensor:
    """Return a table of a file's rows, blank where they say nothing."""
    positions, width = table.shape
    kind, blank = (int, -1) if table.dtype == torch.int64 else ((int, float), math.nan)
    if not isinstance(rows, list) or len(rows) > positions:
        raise ConfigError(f"{name}: {rows!r}, expected a list of at most {positions} rows")
    fresh = torch.full(table.shape, blank, dtype=table.dtype)
    for row, values in enumerate(rows):
        is_list = isinstance(values, list) and len(values) <= width
        if not is_list or not all((isinstance(v, kind) and -MOST < v < MOST) or v is None for v in values):
            what = "token ids" if kind is int else "numbers"
            raise ConfigError(f"{name}[{row}]: {values!r}, expected at most {width} {what} or nulls")
        fresh[row, : len(values)] = torch.tensor([blank if v is None else v for v in values], dtype=table.dtype)
    return fresh.to(table.device)
