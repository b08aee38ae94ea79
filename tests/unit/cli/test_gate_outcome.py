"""From verdict counts to the run's outcome and exit code: what is certain goes before what is not."""

import pytest

from jetspec_cli.gating import records, verdict

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
