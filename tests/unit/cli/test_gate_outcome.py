"""From verdict counts to the run's outcome and exit code: what is certain goes before what is not."""

from pathlib import Path

import pytest

from jetspec_cli.gating import records, verdict
from jetspec_cli.gating.document import GateDocument
from jetspec_cli.gating.spec import GateSpec

IDENTICAL = {records.IDENTICAL: 3}
MISMATCH, NEAR = {records.MISMATCH: 1}, {records.NEAR_TIE: 1}
FAILED, UNSTABLE = {records.FAILED: 1}, {records.UNSTABLE_ORACLE: 1}


@pytest.mark.parametrize(
    ("comparisons", "faults", "code"),
    [
        (IDENTICAL, {}, 0),
        ({**IDENTICAL, **MISMATCH}, {}, 1),
        (IDENTICAL, MISMATCH, 1),
        ({**IDENTICAL, **NEAR}, {}, 1),
        (IDENTICAL, NEAR, 1),
        ({**IDENTICAL, **FAILED}, {}, 6),
        (IDENTICAL, FAILED, 6),
        ({**IDENTICAL, **UNSTABLE}, {}, 5),
        ({}, {}, 5),  # nothing was compared
        ({**MISMATCH, **FAILED, **UNSTABLE}, FAILED, 1),
        ({**FAILED, **UNSTABLE}, {}, 6),
        (UNSTABLE, FAILED, 6),
        ({}, MISMATCH, 1),
    ],
)
def test_R02_what_is_certain_goes_before_what_is_not(comparisons, faults, code):
    assert verdict.EXIT_CODE[verdict.outcome(comparisons, faults, can_near_tie=False)] == code


@pytest.mark.parametrize(
    ("comparisons", "faults", "code"),
    [({**IDENTICAL, **NEAR}, {}, 0), (IDENTICAL, NEAR, 0), ({**NEAR, **MISMATCH}, {}, 1), (NEAR, FAILED, 6)],
)
def test_R51_allowed_near_ties_hide_nothing_else(comparisons, faults, code):
    assert verdict.EXIT_CODE[verdict.outcome(comparisons, faults, can_near_tie=True)] == code


def document_of(*verdicts: str) -> GateDocument:
    document = GateDocument(GateSpec(prompts=Path("p.jsonl")), [], [], "2026-01-01")
    for name in verdicts:
        comparison = records.Comparison(
            dtype="float32", prompt_id="p", text_class="", cell="W4 B16", oracle="linear", attempt=0, verdict=name
        )
        document.record.comparisons.append(comparison)
    return document


@pytest.mark.parametrize(
    ("verdicts", "status", "code"),
    [
        ([records.IDENTICAL], "done", 0),
        ([records.IDENTICAL], verdict.ENGINE_FAILED, 6),
        ([records.IDENTICAL, records.MISMATCH], verdict.ENGINE_FAILED, 1),
        ([records.IDENTICAL, records.UNSTABLE_ORACLE], verdict.ENGINE_FAILED, 6),
        ([], verdict.ENGINE_FAILED, 6),
        ([records.MISMATCH], verdict.INTERRUPTED, 130),
        ([records.MISMATCH], "running", None),
    ],
)
def test_case_28_a_run_that_ends_early_keeps_what_is_certain(verdicts, status, code):
    assert document_of(*verdicts).build(status)["exit_code"] == code
