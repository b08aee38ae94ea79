"""The result document of a gate run: one JSON object that says what ran, where, and what came out.

Schema 1. Knows nothing of files and formats; ``reporting`` renders the document.
"""

from collections.abc import Sequence
from typing import Any

from jetspec_cli import environment
from jetspec_cli.gating import verdict
from jetspec_cli.gating.records import Record
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.gating.summary import summarize
from jetspec_cli.prompts import Prompt, find_repeats
from jetspec_engine import __version__

SCHEMA_VERSION = 1
RUNNING = "running"


class GateDocument:
    """Builds the document at any moment of a run.

    Args:
        spec: resolved.
        prompts: the set, to report repeats.
        command: the command line, without secrets.
        started_at: UTC, ISO 8601.

    Attributes:
        record: what the runner fills.
    """

    def __init__(self, spec: GateSpec, prompts: Sequence[Prompt], command: Sequence[str], started_at: str) -> None:
        self.record = Record()
        self._spec = spec
        self._num_prompts = len(prompts)
        self._command = list(command)
        self._started_at = started_at
        self._environment = environment.stamp()
        for first, later in find_repeats(prompts):
            self.record.note(f"prompts {first} and {later} ask the same")

    def build(self, status: str, *, error: str = "", hint: str = "") -> dict[str, Any]:
        """Return the document.

        Args:
            status: running, done, interrupted or engine_failed.
            error, hint: what ended the run early, one line, and what to do.
        """
        summary = summarize(self.record, can_near_tie=self._spec.allow_near_ties)
        if status in (RUNNING, verdict.INTERRUPTED):
            summary["outcome"] = status
        elif status == verdict.ENGINE_FAILED and summary["outcome"] != verdict.FAILED:
            # A mismatch found before the engine died is still a mismatch.
            summary["outcome"] = verdict.ENGINE_FAILED
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "gate",
            "tool": {"name": "jetspec", "version": __version__},
            "command": self._command,
            "started_at": self._started_at,
            "exit_code": verdict.EXIT_CODE.get(summary["outcome"]),
            "error": error,
            "hint": hint,
            "configuration": {**self._spec.to_mapping(), "num_prompts": self._num_prompts},
            "environment": self._environment,
            "servers": self.record.servers,
            "notes": list(self.record.notes),
            "summary": summary,
            "comparisons": [comparison.to_mapping() for comparison in self.record.comparisons],
            "faults": [fault.to_mapping() for fault in self.record.faults],
            "runs": [run.to_mapping() for run in self.record.runs],
        }
