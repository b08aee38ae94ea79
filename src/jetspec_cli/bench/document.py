"""The result document of a measurement: one JSON object that says what ran, where, and what came out.

Schema 1, kinds bench and sweep. The rows lie beside it as JSON Lines. Knows nothing of rendering.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jetspec_cli import environment, exit_codes
from jetspec_cli.bench.plan import BenchSpec
from jetspec_cli.bench.replay.prediction import Prediction
from jetspec_cli.bench.rows import RowLog
from jetspec_cli.bench.summary import rows_of, summarize
from jetspec_cli.bench.verdicts import best_cells, statement
from jetspec_cli.gating import verdict as gate_verdict
from jetspec_cli.prompts import Prompt, find_repeats
from jetspec_engine import __version__

SCHEMA_VERSION = 1
DONE, RUNNING, INTERRUPTED, ENGINE_FAILED = "done", "running", "interrupted", "engine_failed"
EXIT_CODE = {
    "done": exit_codes.DONE,
    "gate_failed": exit_codes.FAILED,
    "engine_failed": exit_codes.ENGINE_FAILED,
    "inconclusive": exit_codes.INCONCLUSIVE,
    "interrupted": exit_codes.INTERRUPTED,
}


class BenchDocument:
    """Builds the document at any moment of a run.

    Args:
        spec: resolved.
        prompts: the set.
        log: the rows.
        command: the command line, without secrets.
        started_at: UTC, ISO 8601.

    Attributes:
        servers: what the server says of itself.
        notes: what a reader must know.
        prediction: of a replayed sweep, once it is there; then ``spec`` is what is measured of it.
    """

    def __init__(
        self, spec: BenchSpec, prompts: Sequence[Prompt], log: RowLog, command: Sequence[str], started_at: str
    ) -> None:
        self.spec = spec
        self.prediction: Prediction | None = None
        self.servers: list[dict[str, Any]] = []
        self.notes = [f"prompts {first} and {later} ask the same" for first, later in find_repeats(prompts)]
        self._prompts = prompts
        self._log = log
        self._command = list(command)
        self._started_at = started_at
        self._environment = environment.stamp()

    def build(self, status: str, *, error: str = "", hint: str = "") -> dict[str, Any]:
        """Return the document.

        Args:
            status: running, done, interrupted or engine_failed.
            error, hint: what ended the run early, one line, and what to do.
        """
        rows = rows_of(self.spec, self._prompts, self._log)
        cells = summarize(self.spec, rows)
        asked = self.spec
        replay = {}
        if self.prediction is not None:
            asked = self.prediction.spec
            cells = self.prediction.complete(cells, rows)
            replay = {"replay": self.prediction.to_mapping(cells)}
        failures = [
            {key: row[key] for key in ("pairing", "arm", "repeat", "prompt_id", "error")}
            for row in rows
            if not row["is_ok"]
        ]
        result = outcome(status, cells, num_ok=len(rows) - len(failures), num_failed=len(failures))
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.spec.kind,
            "tool": {"name": "jetspec", "version": __version__},
            "command": self._command,
            "started_at": self._started_at,
            "outcome": result,
            "exit_code": EXIT_CODE.get(result),
            "error": error,
            "hint": hint,
            "configuration": {**asked.to_mapping(), "num_prompts": len(self._prompts)},
            "environment": self._environment,
            "servers": self.servers,
            "notes": self.notes,
            "summary": {
                "num_requests": len(rows),
                "num_failed": len(failures),
                "statement": statement(cells),
                "best": best_cells(cells),
            },
            **replay,
            "cells": cells,
            "failures": failures,
        }


def outcome(status: str, cells: Sequence[Mapping[str, Any]], *, num_ok: int, num_failed: int) -> str:
    """Return how the run ended: what is certain (a mismatch) goes before failures, these before what is undecided."""
    gates = {cell["gate"]["outcome"] for cell in cells}
    if status in (RUNNING, INTERRUPTED):
        return status
    if gate_verdict.FAILED in gates:
        return "gate_failed"
    if status == ENGINE_FAILED or num_failed:
        return ENGINE_FAILED
    return "inconclusive" if gate_verdict.INCONCLUSIVE in gates or not num_ok else DONE
