"""The self-test's document as text: one line a mutant, and the conclusion. Knows plain data only."""

from collections.abc import Mapping
from typing import Any

from jetspec_cli.reporting import tables

WORDS = {"passed": "self-test passed", "failed": "self-test FAILED", "interrupted": "self-test interrupted"}


def self_test_text(document: Mapping[str, Any]) -> str:
    """Return the table of mutants and the conclusion."""
    columns = {"name": "mutant", "status": "status", "check": "by check", "where": "at", "fault": "fault"}
    rows = [{**row, "where": _where(row)} for row in document["mutants"]]
    lines = [f"healthy engine FAILED {one['check']}: {one['prompt']}: {one['detail']}" for one in document["healthy"]]
    lines.append(_conclusion(document))
    return "\n\n".join([*([tables.plain(columns, rows)] if rows else []), "\n".join(lines)])


def _conclusion(document: Mapping[str, Any]) -> str:
    outcome, counts = document["summary"]["outcome"], document["summary"]["mutants"]
    killed, num_left = counts["killed"], counts.get("not tried", 0)
    parts = [
        f"{killed}/{killed + counts['SURVIVED']} mutants killed",
        f"{counts['not applicable']} not applicable yet",
        *([f"{num_left} not tried"] if num_left else []),
        f"healthy engine {_healthy(document)}",
        f"{document['seconds']:.0f} s",
    ]
    return f"{WORDS[outcome]}: {', '.join(parts)}"


def _healthy(document: Mapping[str, Any]) -> str:
    if document["healthy"]:
        return "caught"
    # It is tried before the first mutant.
    is_tried = document["mutants"] or document["summary"]["outcome"] != "interrupted"
    return "clean" if is_tried else "not tried to the end"


def _where(row: Mapping[str, Any]) -> str:
    if row["status"] != "killed":
        return str(row.get("detail", ""))
    return str(row["prompt"]) + ("" if row["token"] is None else f", token {row['token']}")
