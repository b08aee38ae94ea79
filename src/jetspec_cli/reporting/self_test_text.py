"""The self-test's document as text: one line a mutant, and the conclusion. Knows plain data only."""

from collections.abc import Mapping
from typing import Any

from jetspec_cli.reporting import tables


def self_test_text(document: Mapping[str, Any]) -> str:
    """Return the table of mutants and the conclusion."""
    columns = {"name": "mutant", "status": "status", "check": "by check", "where": "at", "fault": "fault"}
    rows = [{**row, "where": _where(row)} for row in document["mutants"]]
    counts = document["summary"]["mutants"]
    lines = [f"healthy engine FAILED {one['check']}: {one['prompt']}: {one['detail']}" for one in document["healthy"]]
    killed, skipped = counts["killed"], counts["not applicable"]
    total = killed + counts["SURVIVED"]
    lines.append(
        f"self-test {'passed' if not document['exit_code'] else 'FAILED'}: "
        f"{killed}/{total} mutants killed, {skipped} not applicable yet, "
        f"healthy engine {'caught' if document['healthy'] else 'clean'}, {document['seconds']:.0f} s"
    )
    return tables.plain(columns, rows) + "\n\n" + "\n".join(lines)


def _where(row: Mapping[str, Any]) -> str:
    if row["status"] != "killed":
        return str(row.get("detail", ""))
    return str(row["prompt"]) + ("" if row["token"] is None else f", token {row['token']}")
