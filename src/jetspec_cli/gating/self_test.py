"""``jetspec gate --self-test``: does every seeded fault of the engine trip a check, and does the healthy engine pass?

Knows mutants by name only and checks by what they caught.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from jetspec_cli import environment
from jetspec_cli.gating import verdict
from jetspec_cli.gating.probes import Catch
from jetspec_cli.gating.self_test_checks import CHECKS, Expectation, Trial, record_expected
from jetspec_engine import __version__, registry

SCHEMA_VERSION = 1
KILLED, SURVIVED, NOT_APPLICABLE, NOT_TRIED = "killed", "SURVIVED", "not applicable", "not tried"


def run_self_test(
    command: Sequence[str], on_trial: Callable[[int, int, str], None], *, is_thorough: bool = False
) -> dict[str, Any]:
    """Try every mutant and return the result document, also when it was interrupted: of what was done by then.

    Args:
        command: the command line, for the document.
        on_trial: told (mutants done, of, what comes now) before the healthy engine and before each mutant.
        is_thorough: run every check on every mutant; otherwise a mutant's trial ends at the first that catches it.

    Raises:
        UnavailableError: the embedded engine is not installed.
    """
    kit = registry.self_test()
    started = time.perf_counter()
    healthy: list[Catch] = []
    rows: list[dict[str, Any]] = []
    is_interrupted = False
    try:
        on_trial(0, len(kit.mutants), "the healthy engine")
        expected = _try_healthy(kit, healthy)
        for index, mutant in enumerate(kit.mutants):
            on_trial(index, len(kit.mutants), f"fault {index + 1}/{len(kit.mutants)}: {mutant.name}")
            own = kit.on(mutant.subject)
            rows.append(_try_mutant(own, mutant, expected[mutant.subject, mutant.dtype], is_thorough=is_thorough))
    except KeyboardInterrupt:
        is_interrupted = True
    counts = {status: sum(row["status"] == status for row in rows) for status in (KILLED, SURVIVED, NOT_APPLICABLE)}
    counts[NOT_TRIED] = len(kit.mutants) - len(rows)
    outcome = verdict.FAILED if healthy or counts[SURVIVED] else verdict.PASSED
    if is_interrupted:
        outcome = verdict.INTERRUPTED
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "self_test",
        "tool": {"name": "jetspec", "version": __version__},
        "command": list(command),
        "exit_code": verdict.EXIT_CODE[outcome],
        "environment": environment.stamp(),
        "seconds": round(time.perf_counter() - started, 1),
        "is_thorough": is_thorough,
        "summary": {"outcome": outcome, "mutants": counts},
        "checks": CHECKS,
        "healthy": [asdict(catch) for catch in healthy],
        "mutants": rows,
    }


def _try_healthy(kit: Any, caught: list[Catch]) -> dict[tuple[str, str], Expectation]:
    """Return what each target gives in each dtype; what is caught there, where nothing may be, is added to a list."""
    expected: dict[tuple[str, str], Expectation] = {}
    for setting in sorted({(mutant.subject, mutant.dtype) for mutant in kit.mutants}):
        subject, dtype = setting
        own = kit.on(subject)
        with own.open(None, dtype) as running:
            expected[setting] = record_expected(own, running)
        # Twice: the first trial is what is expected, the second has to meet it.
        for _ in range(2):
            with own.open(None, dtype) as running:
                caught += Trial(own, running, expected[setting]).catches()
    return expected


def _try_mutant(kit: Any, mutant: Any, expected: Expectation, *, is_thorough: bool) -> dict[str, Any]:
    row = {"name": mutant.name, "fault": mutant.fault, "target": mutant.subject, "dtype": mutant.dtype}
    if mutant.not_applicable:
        return {**row, "status": NOT_APPLICABLE, "detail": mutant.not_applicable, "killed_by": {}}
    first: dict[str, Catch] = {}
    with _quiet_engine(), kit.open(mutant, mutant.dtype) as running:
        for catch in Trial(kit, running, expected).catches():
            first.setdefault(catch.check, catch)
            if not is_thorough:
                break
    status = KILLED if first else SURVIVED
    # The first one is what a run that stops there reports.
    main = asdict(next(iter(first.values()))) if first else {}
    return {**row, "status": status, **main, "killed_by": {check: asdict(catch) for check, catch in first.items()}}


@contextmanager
def _quiet_engine() -> Iterator[None]:
    """Keep the engine from logging inside the block: what a mutant makes it complain of is expected."""
    logger = logging.getLogger("jetspec_engine")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
