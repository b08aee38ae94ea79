"""A gate run as Markdown, for job summaries: appended, so that two runs of one job both stay readable (R31)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jetspec_cli.console import printable
from jetspec_cli.reporting.findings import findings
from jetspec_cli.reporting.tables import conclusion

MAX_FINDINGS = 50
MARKS = {"passed": "✅", "failed": "❌", "engine_failed": "❌"}


def render(document: Mapping[str, Any]) -> str:
    """Return a gate document as Markdown: conclusion, cells, accept lengths by class, findings, environment."""
    summary = document["summary"]
    parts = [f"### {MARKS.get(summary['outcome'], '⚠️')} {escape(conclusion(document))}", _about(document)]
    if document["error"]:
        parts.append(f"**{escape(document['error'])}**")
    if summary["cells"]:
        parts += [_cells(summary["cells"]), _classes(summary["cells"])]
    found = list(findings(document))
    for title, lines in found[:MAX_FINDINGS]:
        parts.append("\n".join([f"- {escape(title)}", *(f"  - {escape(line)}" for line in lines)]))
    if len(found) > MAX_FINDINGS:
        parts.append(f"- ... and {len(found) - MAX_FINDINGS} more")
    parts += [f"> {escape(note)}" for note in document["notes"]]
    return "\n\n".join(part for part in parts if part) + "\n\n"


def append(path: Path, text: str) -> None:
    """Add text to the end of a file. Raises OSError, naming it."""
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def table(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table; cells are escaped."""
    lines = [list(headings), *([str(cell) for cell in row] for row in rows)]
    shown = ["| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(lines[0]), *shown[1:]])


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = printable(text.replace("\n", " ").replace("\r", " "))
    return "".join(f"\\{character}" if character in "\\`*_|<>[]#~" else character for character in flat)


def _about(document: Mapping[str, Any]) -> str:
    stamp = document["environment"]
    infos = [server["info"] for server in document["servers"] if server["role"] == "candidate"]
    info: Mapping[str, Any] = infos[0] if infos else {}
    facts = [
        f"{info.get('target')} with {info.get('head') or 'no head'}" if info.get("target") else "",
        " ".join(str(info[key]) for key in ("engine", "device") if info.get(key)),
        *(stamp["gpus"] or [stamp["processor"]]),
        f"jetspec {document['tool']['version']}",
        f"commit {stamp['commit'][:12]}" if stamp.get("commit") else "",
    ]
    return escape(" · ".join(fact for fact in facts if fact))


def _cells(cells: Iterable[Mapping[str, Any]]) -> str:
    headings = ("dtype", "tree", "oracle", "identical", "mismatch", "near-tie", "unstable", "failed", "accept length")
    rows = (
        (
            cell["dtype"],
            cell["cell"],
            cell["oracle"],
            f"{cell['identical']}/{cell['num_compared']}",
            *(cell[key] for key in ("mismatch", "near_tie", "unstable_oracle", "failed")),
            _length(cell["accept_length"]),
        )
        for cell in cells
    )
    return table(headings, rows)


def _classes(cells: Iterable[Mapping[str, Any]]) -> str:
    by_cell = {(cell["dtype"], cell["cell"]): cell["accept_length_by_class"] for cell in cells}
    classes = sorted({name for lengths in by_cell.values() for name in lengths})
    if not classes:
        return ""
    rows = ((*key, *(_length(lengths.get(name)) for name in classes)) for key, lengths in by_cell.items())
    return "Accept length by class of text\n\n" + table(("dtype", "tree", *classes), rows)


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
