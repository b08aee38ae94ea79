"""Counts and accept lengths of a run, by cell and by class of text.

Accept length is pooled: emitted tokens / rounds over a set, with each class's beside it. No speeds: a gate measures
none.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from jetspec_cli.gating.records import VERDICTS, Comparison, Fault, Record, Run
from jetspec_cli.gating.verdict import outcome


def summarize(record: Record, *, can_near_tie: bool) -> dict[str, Any]:
    """Return the summary of a record, finished or not: outcome, totals, cells, oracles and checks."""
    comparisons = Counter(comparison.verdict for comparison in record.comparisons)
    faults = Counter(fault.verdict for fault in record.faults)
    return {
        "outcome": outcome(comparisons, faults, can_near_tie=can_near_tie),
        "comparisons": _counts(comparisons),
        "failed_requests": sum(1 for run in record.runs if run.generation is None),
        "cells": summarize_cells(record),
        "oracles": summarize_oracles(record.runs),
        "checks": {
            "accounting": _check("accounting", record.faults, sum(1 for run in record.runs if run.generation)),
            "teacher_forced": _check("teacher_forced", record.faults, record.num_teacher_forced),
            **{name: _check(name, record.faults, count) for name, count in record.num_probed.items()},
        },
    }


def summarize_cells(record: Record) -> list[dict[str, Any]]:
    """Return one row a dtype, cell and oracle, in the order they ran."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in record.comparisons:
        groups.setdefault((comparison.dtype, comparison.cell, comparison.oracle), []).append(comparison)
    rows = []
    for (dtype, cell, oracle), group in groups.items():
        runs = [r for r in record.runs if (r.role, r.dtype, r.label) == ("candidate", dtype, cell)]
        counts = _counts(Counter(comparison.verdict for comparison in group))
        rows.append(
            {"dtype": dtype, "cell": cell, "oracle": oracle, "num_compared": len(group), **counts, **accept(runs)}
        )
    return rows


def summarize_oracles(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return each oracle's accept lengths, a dtype at a time."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.role == "oracle":
            groups.setdefault((run.dtype, run.label), []).append(run)
    return [{"dtype": dtype, "oracle": label, **accept(group)} for (dtype, label), group in groups.items()]


def accept(runs: Iterable[Run]) -> dict[str, Any]:
    """Return the pooled accept length of runs, and by class; None where no run has counters."""
    by_class: dict[str, list[Run]] = {}
    counted = [run for run in runs if run.generation is not None and run.generation.num_rounds]
    for run in counted:
        by_class.setdefault(run.text_class or "unclassed", []).append(run)
    return {
        "accept_length": _pooled(counted),
        "accept_length_by_class": {name: _pooled(group) for name, group in sorted(by_class.items())},
    }


def _pooled(runs: Iterable[Run]) -> float | None:
    answers = [run.generation for run in runs if run.generation is not None]
    rounds = sum(answer.num_rounds or 0 for answer in answers)
    return sum(answer.num_emitted_tokens or 0 for answer in answers) / rounds if rounds else None


def _counts(found: Counter[str]) -> dict[str, int]:
    return {verdict: found.get(verdict, 0) for verdict in VERDICTS}


def _check(name: str, faults: Iterable[Fault], num_checked: int) -> dict[str, Any]:
    own = Counter(fault.verdict for fault in faults if fault.check == name)
    return {"num_checked": num_checked, "num_faults": sum(own.values()), **{v: own[v] for v in sorted(own)}}
