"""From counts to the run's outcome and exit code.

What is certain goes before what is not: a mismatch with a stable oracle fails the gate even when other requests
failed; failed requests go before an unstable oracle; a run that compared nothing is inconclusive.
"""

from collections.abc import Mapping

from jetspec_cli import exit_codes
from jetspec_cli.gating import records

PASSED = "passed"
FAILED = "failed"
ENGINE_FAILED = "engine_failed"
INCONCLUSIVE = "inconclusive"
INTERRUPTED = "interrupted"
EXIT_CODE = {
    PASSED: exit_codes.DONE,
    FAILED: exit_codes.FAILED,
    ENGINE_FAILED: exit_codes.ENGINE_FAILED,
    INCONCLUSIVE: exit_codes.INCONCLUSIVE,
    INTERRUPTED: exit_codes.INTERRUPTED,
}


def outcome(comparisons: Mapping[str, int], faults: Mapping[str, int], *, can_near_tie: bool) -> str:
    """Return the outcome of a finished run.

    Args:
        comparisons: how many comparisons have each verdict.
        faults: how many faults of single runs have each verdict.
        can_near_tie: near-ties do not fail.
    """
    near_ties = comparisons.get(records.NEAR_TIE, 0) + faults.get(records.NEAR_TIE, 0)
    mismatches = comparisons.get(records.MISMATCH, 0) + faults.get(records.MISMATCH, 0)
    if mismatches or (near_ties and not can_near_tie):
        return FAILED
    if comparisons.get(records.FAILED, 0) or faults.get(records.FAILED, 0):
        return ENGINE_FAILED
    if comparisons.get(records.UNSTABLE_ORACLE, 0) or not sum(comparisons.values()):
        return INCONCLUSIVE
    return PASSED
