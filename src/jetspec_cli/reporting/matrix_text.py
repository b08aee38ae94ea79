"""A report of matrices as terminal tables, Markdown, CSV and JSON. Knows plain data only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jetspec_cli.reporting import json_doc, markdown, tables
from jetspec_cli.reporting.cells import DASH, best_lines, csv_text, even_lines, mark, number, shown

Report = Mapping[str, Any]
DIGITS = {"step_cost_ratio": 3, "tok_s_at": 0}
LOWER_IS_BETTER = ("step_cost_ratio", "round_ms")


def as_json(report: Report) -> str:
    """Return the whole report as JSON."""
    return json_doc.dumps(report)


def as_csv(report: Report) -> str:
    """Return one line a cell, every number unrounded."""
    return csv_text(cell for group in report["groups"] for cell in group["cells"])


def as_table(report: Report) -> str:
    """Return the report for a terminal."""
    parts: list[str] = []
    for group in report["groups"]:
        parts.append(setting_line(group["setting"]))
        for matrix in group["matrices"]:
            heading, *lines = grid(matrix)
            columns = {str(place): name for place, name in enumerate(heading)}
            rows = [dict(zip(columns, line, strict=True)) for line in lines]
            parts.append(f"{matrix['title']}\n{tables.plain(columns, rows)}")
        parts.append(tables.plain(*shown(group["cells"])))
        parts.append("\n".join(_conclusions(group)))
    parts += [_regressions(report, tables_of=tables.plain)]
    parts += ["\n".join(f"note: {note}" for note in report["notes"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_markdown(report: Report) -> str:
    """Return the report as Markdown, for a README."""
    parts: list[str] = []
    for group in report["groups"]:
        parts.append(f"### {markdown.escape(setting_line(group['setting']))}")
        for matrix in group["matrices"]:
            heading, *lines = grid(matrix)
            parts.append(f"**{markdown.escape(matrix['title'])}**\n\n{markdown.table(heading, lines)}")
        columns, rows = shown(group["cells"])
        parts.append(markdown.table(columns.values(), ([row[key] for key in columns] for row in rows)))
        parts.append("\n".join(f"- {markdown.escape(line)}" for line in _conclusions(group)))
    parts += [_regressions(report, tables_of=_markdown_table)]
    parts += [f"> {markdown.escape(note)}" for note in report["notes"]]
    parts += [f"> {markdown.escape(line)}" for line in environment_lines(report["runs"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def grid(matrix: Mapping[str, Any]) -> list[list[str]]:
    """Return a matrix as lines of words, the heading first."""
    digits = DIGITS.get(matrix["metric"], 2)
    heading = [f"{matrix['row_name']} \\ {matrix['column_name']}", *(word(value) for value in matrix["columns"])]
    lines = zip(matrix["rows"], matrix["values"], matrix["is_predicted"], strict=True)
    return [
        heading,
        *(
            [
                word(row),
                *(mark(number(value, digits), is_guess) for value, is_guess in zip(values, guesses, strict=True)),
            ]
            for row, values, guesses in lines
        ),
    ]


def word(value: Any) -> str:
    """Return an axis value as a person writes it."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def setting_line(setting: Mapping[str, str]) -> str:
    """Return what a group of cells ran on, in one line."""
    head = f" with {setting['head']}" if setting.get("head") else ""
    many = f", concurrency {setting['concurrency']}" if setting.get("concurrency") not in ("1", "None") else ""
    engine = " ".join(filter(None, (setting["engine"], setting["attention"])))
    device = f"{setting['dtype']} on {setting['device']}"
    parts = (f"{setting['target']}{head}", engine, device, f"{setting['prompts']}{many}", setting["details"])
    return ", ".join(filter(None, parts))


def environment_lines(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line a run: machine, versions, commit, date."""
    lines = []
    for run in runs:
        stamp = run["environment"]
        versions = stamp.get("versions") or {}
        facts = [
            run["source"],
            *(stamp.get("gpus") or [stamp.get("processor") or ""]),
            *(f"{name} {versions[name]}" for name in ("jetspec", "torch", "sglang") if versions.get(name)),
            f"commit {stamp['commit'][:12]}" if stamp.get("commit") else "",
            run["started_at"],
        ]
        lines.append(" · ".join(str(fact) for fact in facts if fact))
    return lines


def _conclusions(group: Mapping[str, Any]) -> Sequence[str]:
    return [*even_lines(group), *best_lines(group["best"]), *([group["statement"]] if group["statement"] else [])]


def against_baseline(report: Report) -> tuple[list[dict[str, str]], str]:
    """Return what was compared with the baseline, a row a cell and metric, and its conclusion; none without one."""
    compared = report.get("baseline")
    if compared is None:
        return [], ""
    rows = [
        {
            "cell": row["label"],
            "metric": row["metric"],
            "baseline": number(row["old"]),
            "now": number(row["new"]),
            "ratio": DASH if row["ratio"] is None else number(row["ratio"]["value"], 3),
            "verdict": "REGRESSION" if row["is_regression"] else "within noise or better",
        }
        for row in compared["rows"]
    ]
    count = len(compared["regressions"])
    return rows, f"against {compared['source']}: {compared['num_met']} cells compared, {count} regressions"


def _regressions(report: Report, *, tables_of: Any) -> str:
    rows, line = against_baseline(report)
    return f"{tables_of({key: key for key in rows[0]}, rows)}\n\n{line}" if rows else line


def _markdown_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, str]]) -> str:
    return markdown.table(columns.values(), ([row[key] for key in columns] for row in rows))
