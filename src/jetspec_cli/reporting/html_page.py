"""A report as one HTML file without anything from elsewhere: light and dark, sortable tables, heatmaps, plots.

Every chart and table has an accessible name; wide tables scroll inside their own box. Knows plain data only.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jetspec_cli.reporting import pareto_svg
from jetspec_cli.reporting.cells import HEADINGS, best_lines, even_lines, flat, shown
from jetspec_cli.reporting.html_style import SCRIPT, STYLE
from jetspec_cli.reporting.matrix_text import LOWER_IS_BETTER, against_baseline, environment_lines, grid, setting_line

# Cells are shaded by how far a value lies from the one that decides, or within their own range.
MIDDLE = {"speedup": 1.0, "speedup_by_class": 1.0, "speedup_plain": 1.0, "accept_ratio": 1.0, "step_cost_ratio": 1.0}
# A ratio this far from the one that decides has the full colour, whatever the others are.
MIN_REACH = 0.2
MAX_NARROW_COLUMNS = 5
SORT_KEYS = {
    "accept_length": "accept_length",
    "accept_rate": "accept_rate",
    "round_ms": "median_round_s",
    "ttft_ms": "ttft_s_p50",
    "tpot_ms": "tpot_s_p50",
    "e2e_ms": "e2e_s_p50",
    "tok_s": "tok_s_value",
    "over_linear": "speedup_linear_value",
    "over_plain": "speedup_plain_value",
    "over_other": "speedup_other_value",
    "step_cost_ratio": "step_cost_ratio",
}


def render(report: Mapping[str, Any]) -> str:
    """Return the page."""
    groups = [_group(group, f"g{number}") for number, group in enumerate(report["groups"])]
    notes = "".join(f"<li>{escape(str(note))}</li>" for note in report["notes"])
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>JetSpec: does the tree pay?</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            "<h1>Does the tree pay?</h1>",
            _regressions(report),
            *groups,
            f'<section aria-labelledby="notes"><h2 id="notes">Notes</h2><ul>{notes}</ul></section>' if notes else "",
            _environment(report["runs"]),
            f"</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _regressions(report: Mapping[str, Any]) -> str:
    rows, line = against_baseline(report)
    if not line:
        return ""
    head = "".join(f'<th scope="col">{escape(key)}</th>' for key in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in row.values())}</tr>" for row in rows)
    table = (
        _box("Against the baseline", f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", "plain") if rows else ""
    )
    return f'<section aria-labelledby="base"><h2 id="base">{escape(line)}</h2>{table}</section>'


def _group(group: Mapping[str, Any], name: str) -> str:
    points = pareto_svg.points_of(group["cells"])
    lines = "".join(f"<li>{escape(line)}</li>" for line in best_lines(group["best"]))
    even = "".join(f"<li>{escape(line)}</li>" for line in even_lines(group))
    parts = [
        f'<section aria-labelledby="{name}">',
        f'<h2 id="{name}">{escape(setting_line(group["setting"]))}</h2>',
        f'<p class="statement">{escape(group["statement"])}</p>' if group["statement"] else "",
        f"<ul>{lines}</ul>" if lines else "",
        f"<figure>{pareto_svg.render(points, name)}"
        "<figcaption>Each point is a tree setting, a hollow one was predicted and not measured. The dashed line is the "
        "break-even.</figcaption></figure>"
        if points
        else "",
        '<div class="matrices">',
        *(_matrix(matrix) for matrix in group["matrices"]),
        "</div>",
        _cells(group["cells"]),
        *(_histogram(cell) for cell in group["cells"] if cell["role"] != "plain" and cell["accept_histogram"]),
        f"<details><summary>Break-even of every cell</summary><ul>{even}</ul></details>" if even else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _matrix(matrix: Mapping[str, Any]) -> str:
    heading, *lines = grid(matrix)
    shades = shade(matrix["metric"], matrix["values"])
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heading)
    body = ""
    for line, colors in zip(lines, shades, strict=True):
        cells = (f"<td{color}>{escape(value)}</td>" for value, color in zip(line[1:], colors, strict=True))
        body += f'<tr><th scope="row">{escape(line[0])}</th>{"".join(cells)}</tr>'
    is_wide = len(heading) > MAX_NARROW_COLUMNS
    kind = "heat words" if matrix["metric"] == "verdict" else "heat"
    return _box(matrix["title"], f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", kind, is_wide=is_wide)


def shade(metric: str, values: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return each cell's style attribute: more of the good colour above the middle, of the bad one below."""
    numbers = [value for line in values for value in line if isinstance(value, (int, float))]
    middle = MIDDLE.get(metric, sum(numbers) / len(numbers) if numbers else 0.0)
    reach = max((abs(value - middle) for value in numbers), default=0.0) or 1.0
    reach = max(reach, MIN_REACH) if metric in MIDDLE else reach
    sign = -1 if metric in LOWER_IS_BETTER else 1

    def style(value: Any) -> str:
        if isinstance(value, (int, float)):
            far = sign * (value - middle) / reach
            return f' class="{"good" if far >= 0 else "bad"}" style="--far:{abs(far) * 45:.0f}%"'
        kind = {"pays": "good", "predicted to pay": "good", "does not pay": "bad", "predicted not to pay": "bad"}.get(
            str(value)
        )
        return f' class="{kind}" style="--far:30%"' if kind else ""

    return [[style(value) for value in line] for line in values]


def _cells(cells: Sequence[Mapping[str, Any]]) -> str:
    headings, rows = shown(cells)
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(HEADINGS[key])}</button></th>'
        for key in headings
    )
    body = ""
    for cell, row in zip(cells, rows, strict=True):
        numbers = flat(cell)
        body += "<tr>"
        for place, key in enumerate(headings):
            value = numbers.get(SORT_KEYS.get(key, ""))
            sort = f' data-sort="{escape(str(value))}"' if value is not None else ""
            tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
            body += f"<{tag}{scope}{sort}>{escape(row[key])}</{tag}>"
        body += "</tr>"
    return _box("Every cell", f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", "sortable")


def _histogram(cell: Mapping[str, Any]) -> str:
    """Return a cell's accept histogram as bars: the share of rounds that emitted so many tokens."""
    counts = cell["accept_histogram"]
    total, most = sum(counts), max(counts)
    name = escape(f"Accept histogram of {cell['label']}")
    wide = 24 * len(counts)
    bars = "".join(
        f'<rect x="{24 * size + 2}" y="{100 - 92 * count / most:.1f}" width="20" height="{92 * count / most:.1f}">'
        f"<title>{count / total:.1%} of rounds emitted {size} tokens</title></rect>"
        f'<text x="{24 * size + 12}" y="114" text-anchor="middle">{size}</text>'
        for size, count in enumerate(counts)
    )
    svg = f'<svg class="bars" viewBox="0 0 {wide} 118" style="max-width:{wide}px" role="img" aria-label="{name}">'
    legend = "<p>Tokens emitted by a round, bonus included.</p>"
    return f"<details><summary>{name}</summary>{svg}{bars}</svg>{legend}</details>"


def _environment(runs: Iterable[Mapping[str, Any]]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in environment_lines(runs))
    return f'<section aria-labelledby="env"><h2 id="env">Environment</h2><ul>{lines}</ul></section>'


def _box(title: str, content: str, kind: str, *, is_wide: bool = False) -> str:
    """Return a table in a box that scrolls by itself, reachable by keyboard."""
    name = escape(title)
    return (
        f'<div class="box{" wide" if is_wide else ""}" role="region" tabindex="0" aria-label="{name}">'
        f'<table class="{kind}"><caption><span>{name}</span></caption>{content}</table></div>'
    )
