"""Checks that one run must pass by itself, whatever it is compared with: its counters, and the target's argmax."""

from typing import Any

from jetspec_cli.gating import records, teacher
from jetspec_cli.gating.records import Fault, Record, Run
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_engine.errors import EngineError

ACCOUNTING = "accounting"
TEACHER_FORCED = "teacher_forced"


class RunChecks:
    """Checks the runs of one dtype; faults go into the record, which is mutated."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._seen: set[tuple[str, tuple[int, ...]]] = set()

    def check(self, prompt: Prompt, run: Run, client: ServerClient) -> None:
        """Check a run; the same tokens of the same prompt are scored once."""
        if run.generation is None:
            return
        fault = run.generation.accounting_fault()
        if fault:
            self._add(ACCOUNTING, run, records.MISMATCH, fault)
        ids = run.generation.token_ids
        # An oracle that is wrong where the tree is right shows as a mismatch, or as unstable; its own runs prove
        # nothing about the tree.
        if run.role == "oracle" or ids is None or (run.prompt_id, ids) in self._seen:
            return
        self._seen.add((run.prompt_id, ids))
        try:
            self._teacher_force(prompt, run, ids, client)
        except EngineError as error:
            self._add(TEACHER_FORCED, run, records.FAILED, f"scoring failed: {error.what}")

    def _teacher_force(self, prompt: Prompt, run: Run, ids: tuple[int, ...], client: ServerClient) -> None:
        prompt_ids = client.render(prompt)
        wrong = None if prompt_ids is None else teacher.find_wrong_tokens(client, prompt_ids, ids)
        if wrong is None:
            self._record.note(f"{client.url}: no scoring, so tokens were not checked against the target's argmax")
            return
        self._record.num_teacher_forced += len(ids)
        if wrong:
            are_near_ties = all(report["is_near_tie"] for report in wrong)
            verdict = records.NEAR_TIE if are_near_ties else records.MISMATCH
            self._add(TEACHER_FORCED, run, verdict, _in_words(wrong), wrong)

    def _add(self, check: str, run: Run, verdict: str, detail: str, report: list[dict[str, Any]] | None = None) -> None:
        self._record.faults.append(
            Fault(
                check=check,
                dtype=run.dtype,
                prompt_id=run.prompt_id,
                label=run.label,
                verdict=verdict,
                detail=detail,
                report=report,
            )
        )


def _in_words(wrong: list[dict[str, Any]]) -> str:
    # The first wrong token that is more than rounding says most about a fault.
    first = next((report for report in wrong if not report["is_near_tie"]), wrong[0])
    others = f"; {len(wrong)} such tokens" if len(wrong) > 1 else ""
    return (
        f"token {first['position']}: {first['token_id']} was emitted, the argmax is {first['argmax']}, "
        f"{first['gap_nats']:.3g} nats or {first['gap_ulp']:.3g} ULP above it{others}"
    )
