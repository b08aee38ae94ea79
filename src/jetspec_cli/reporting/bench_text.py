"""A bench or sweep document in each text format, and its progress on stderr. Knows plain data only."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetspec_cli import console
from jetspec_cli.reporting import json_doc, markdown, tables
from jetspec_cli.reporting.cells import best_lines, csv_text, rows_as_csv, shown

FORMATS = ("table", "json", "csv", "md")
MAX_FAILURES = 10
OUTCOMES = {
    "done": "done",
    "gate_failed": "gate FAILED: speeds of that cell are withheld",
    "engine_failed": "FAILED: requests failed",
    "inconclusive": "inconclusive: nothing was measured, or an oracle is unstable",
    "interrupted": "interrupted: with --out what is done is kept, and the same command goes on from here",
}


def render(document: Mapping[str, Any], output: str) -> str:
    """Return a document as table, json, csv or md."""
    clean = json_doc.finite(document)
    if output == "json":
        return json_doc.dumps(clean).rstrip()
    if output == "csv":
        return csv_text(clean["cells"]).rstrip()
    headings, rows = shown(clean["cells"])
    if output == "md":
        listed = markdown.table(headings.values(), ([row[key] for key in headings] for row in rows)) if rows else ""
        return "\n\n".join(part for part in (listed, *map(markdown.escape, _lines(clean))) if part)
    return "\n\n".join(
        part for part in (tables.plain(headings, rows) if rows else "", "\n".join(_lines(clean))) if part
    )


def render_estimate(estimate: Mapping[str, Any], output: str) -> str:
    """Return a dry run's estimate as table, json, csv or md."""
    if output == "json":
        return json_doc.dumps(estimate).rstrip()
    columns = {"label": "cell", "num_requests": "requests", "max_tokens": "tokens at most", "time": "time at most"}
    rows = [{**cell, "time": duration(cell["max_s"])} for cell in estimate["cells"]]
    if output == "csv":
        names = ("label", "num_requests", "max_tokens", "max_s")
        return rows_as_csv([{name: cell[name] for name in names} for cell in estimate["cells"]]).rstrip()
    lines = ([row[key] for key in columns] for row in rows)
    table = markdown.table(columns.values(), lines) if output == "md" else tables.plain(columns, rows)
    total = f"{estimate['num_requests']} requests, {estimate['max_tokens']} tokens at most"
    return f"{table}\n\n{total}, about {duration(estimate['max_s'])} at most; nothing was measured"


def duration(seconds: float) -> str:
    """Return seconds for people."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


class BenchLive:
    """Tells how a measurement goes: a bar on a terminal, a line a cell elsewhere; keeps the document meanwhile.

    Args:
        bar: drawn on a terminal only.
        out: file of the document; None keeps none.
    """

    def __init__(self, bar: console.Bar, out: Path | None) -> None:
        self._bar = bar
        self._out = out
        self._cell = ""
        self._started = time.monotonic()

    def on_start(self, message: str) -> None:
        """A server is being started or reached, or says something while it starts."""
        self._bar.say(message)

    def on_block(self, num_done: int, num_total: int, label: str) -> None:
        """A block is done."""
        self._bar.update(label=label, done=num_done, total=num_total)
        cell = label.rpartition(": ")[0]
        if cell != self._cell and not console.is_live():
            console.talk(f"{cell} ({num_done - 1}/{num_total} blocks done{self._left(num_done - 1, num_total)})")
        self._cell = cell

    def on_document(self, document: Mapping[str, Any]) -> None:
        """The document so far."""
        try:
            if self._out is not None:
                json_doc.write_whole(self._out, json_doc.dumps(document))
        except OSError as error:
            # The rows are kept beside it, and the tables are shown at the end whatever the disk holds.
            console.talk(f"not kept so far: {error.filename}: {error.strerror}")

    def _left(self, num_done: int, num_total: int) -> str:
        if not num_done:
            self._started = time.monotonic()
            return ""
        seconds = (time.monotonic() - self._started) / num_done * (num_total - num_done)
        return f", about {duration(seconds)} left"


def _replay(replay: Mapping[str, Any] | None) -> list[str]:
    """Return how good the predictions were where they could be held against a measurement."""
    if not replay or replay["tok_s_error_max"] is None:
        return []
    exact = "equal" if replay["is_accept_exact"] else "NOT equal"
    return [
        f"replayed {replay['num_recorded_prompts']} prompts, {replay['num_recorded_tokens']} tokens; "
        f"{len(replay['live_cells'])} cells measured: accept lengths {exact} to the replayed ones, "
        f"tok/s {replay['tok_s_error_mean']:.1%} off on average, {replay['tok_s_error_max']:.1%} at most"
    ]


def _lines(document: Mapping[str, Any]) -> list[str]:
    """Return what stands below the table: findings, failures, notes, best cells, the statement, the outcome."""
    lines = []
    for cell in document["cells"]:
        for found in cell["gate"]["findings"][:MAX_FAILURES]:
            lines.append(f"{cell['label']}: {found['prompt_id']}: {found['verdict']}: {found['detail']}")
    failures = document["failures"]
    lines += [f"failed: {one['arm']}: {one['prompt_id']}: {one['error']}" for one in failures[:MAX_FAILURES]]
    if len(failures) > MAX_FAILURES:
        lines.append(f"... and {len(failures) - MAX_FAILURES} more failed requests")
    lines += [f"note: {note}" for note in document["notes"]]
    summary = document["summary"]
    lines += best_lines(summary["best"]) if document["kind"] == "sweep" else []
    lines += [summary["statement"]] if summary["statement"] else []
    lines += _replay(document.get("replay"))
    counts = f"{summary['num_requests']} requests, {summary['num_failed']} failed"
    return [*lines, f"{OUTCOMES.get(document['outcome'], document['outcome'])} ({counts})"]
