"""Tables and blocks of text for the terminal. Knows plain data only."""

from collections.abc import Iterable, Mapping
from typing import Any

from jetspec_cli.reporting.findings import findings

MAX_FINDINGS = 20
WORDS = {
    "passed": "gate passed",
    "failed": "gate FAILED",
    "engine_failed": "gate FAILED: requests failed",
    "inconclusive": "gate inconclusive",
    "interrupted": "gate interrupted",
    "running": "gate still running",
}
STYLES = {"passed": "bold green", "failed": "bold red", "engine_failed": "bold red"}


def size(num_bytes: int | None) -> str:
    """Return a size for people, or an empty string."""
    if num_bytes is None:
        return ""
    value, units = float(num_bytes), ["B", "KB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def word(value: Any) -> str:
    """Return a value as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(word(item) for item in value if item is not None) or "none"
    return "" if value is None else str(value)


def plain(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return aligned columns.

    Args:
        columns: key to heading.
        rows: a mapping each; a missing key is an empty cell.
    """
    lines = [list(columns.values()), *([word(row.get(key)) for key in columns] for row in rows)]
    cells = [[" ".join(cell.splitlines()) if "\n" in cell else cell for cell in line] for line in lines]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    shown = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in shown)


def nested(data: Mapping[str, Any], depth: int = 0) -> str:
    """Return nested mappings as indented lines; sizes in bytes are shown as sizes."""
    lines = []
    for key, value in data.items():
        name = f"{'  ' * depth}{key.removesuffix('_bytes').removeprefix('is_').replace('_', ' ')}"
        if isinstance(value, Mapping):
            lines += [name, nested(value, depth + 1)] if value else []
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            lines += [name, *(nested(item, depth + 1) for item in value)]
        else:
            shown = size(value) if key.endswith("_bytes") else word(value)
            lines += [f"{name}: {shown}"] if shown else []
    return "\n".join(lines)


FAULTS = {"teacher_forced": "runs with tokens not the argmax", "accounting": "runs with wrong counters"}


def conclusion(document: Mapping[str, Any]) -> str:
    """Return the last line: how the run ended and the counts behind it."""
    summary = document["summary"]
    counts = summary["comparisons"]
    total = sum(counts.values())
    parts = [f"{counts['identical']}/{total} identical"]
    names = {"mismatch": "mismatches", "near_tie": "near-ties", "unstable_oracle": "unstable", "failed": "failed"}
    parts += [f"{counts[key]} {name}" for key, name in names.items() if counts[key]]
    for name, check in summary["checks"].items():
        parts += [f"{check['num_faults']} {FAULTS.get(name, f'faults of {name}')}"] if check["num_faults"] else []
    probed = [name for name, check in summary["checks"].items() if name not in FAULTS and check["num_checked"]]
    parts += [f"probed: {', '.join(probed)}"] if probed else []
    num_scored = summary["checks"]["teacher_forced"]["num_checked"]
    parts += [f"{num_scored} tokens checked against the argmax"] if num_scored else []
    return f"{WORDS.get(summary['outcome'], summary['outcome'])}: {', '.join(parts)}"


def gate_text(document: Mapping[str, Any]) -> str:
    """Return what a person wants to see of a gate run before its conclusion: the table, the findings and notes."""
    found = list(findings(document))
    blocks = ["\n  ".join([title, *lines]) for title, lines in found[:MAX_FINDINGS]]
    if len(found) > MAX_FINDINGS:
        blocks.append(f"... and {len(found) - MAX_FINDINGS} more; --out FILE keeps them all")
    notes = [f"note: {note}" for note in document["notes"]]
    table = gate_table(document["summary"]["cells"])
    parts = [table, *blocks, *(["\n".join(notes)] if notes else [])]
    return "\n\n".join(part for part in parts if part)


def gate_table(cells: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of cells: verdict counts and accept length."""
    rows = [
        {
            "dtype": cell["dtype"],
            "tree": cell["cell"],
            "oracle": cell["oracle"],
            "identical": f"{cell['identical']}/{cell['num_compared']}",
            **{key: cell[key] or "-" for key in ("mismatch", "near_tie", "unstable_oracle", "failed")},
            "accept": "-" if cell["accept_length"] is None else f"{cell['accept_length']:.2f}",
        }
        for cell in cells
    ]
    columns = {"dtype": "dtype", "tree": "tree", "oracle": "oracle", "identical": "identical", "mismatch": "mismatch"}
    columns |= {"near_tie": "near-tie", "unstable_oracle": "unstable", "failed": "failed", "accept": "accept length"}
    return plain(columns, rows) if rows else ""
