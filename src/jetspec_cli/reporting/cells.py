"""Cells of measurements as rows of a table: what is shown, under which heading, in which unit.

Seconds become milliseconds here. A value nobody knows, or that was withheld, is a dash. Knows plain data only.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Cell = Mapping[str, Any]
DASH = "-"
# What a spreadsheet would take for a formula, and run.
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")
HEADINGS = {
    "label": "cell",
    "gate": "gate",
    "requests": "requests",
    "accept_length": "accept length",
    "accept_rate": "accept rate",
    "round_ms": "round ms",
    "ttft_ms": "TTFT ms p50/p90/p99",
    "tpot_ms": "TPOT ms p50/p90/p99",
    "e2e_ms": "E2E ms p50/p90/p99",
    "tok_s": "tok/s (passes)",
    "over_linear": "over linear [95 %]",
    "over_plain": "over plain",
    "over_other": "over other server [95 %]",
    "step_cost_ratio": "step cost ratio",
    "verdict": "verdict",
}


def row(cell: Cell) -> dict[str, str]:
    """Return one cell's row for people."""
    linear = cell["against"].get("linear") or {}
    plain = cell["against"].get("plain") or {}
    other = cell["against"].get("other server") or {}
    failed = f", {cell['num_failed']} failed" if cell["num_failed"] else ""
    is_guess = cell["gate"]["outcome"] == "predicted"
    return {
        "label": cell["label"],
        "gate": _gate(cell["gate"]),
        "requests": f"{cell['num_requests']}{failed}",
        "accept_length": number(cell["accept_length"]),
        "accept_rate": number(cell["accept_rate"]),
        "round_ms": mark(number(_scaled((cell["round_s"] or {}).get("median"))), is_guess),
        "ttft_ms": _percentiles(cell["ttft_s"]),
        "tpot_ms": _percentiles(cell["tpot_s"]),
        "e2e_ms": _percentiles(cell["e2e_s"]),
        "tok_s": mark(_spread(cell["tok_s"]), is_guess),
        "over_linear": mark(interval(linear.get("speedup")), is_guess),
        "over_plain": mark(interval(plain.get("speedup")), is_guess),
        "over_other": interval(other.get("speedup")),
        "step_cost_ratio": mark(number(linear.get("step_cost_ratio"), 3), is_guess),
        "verdict": (cell["role"] == "tree" and linear.get("verdict")) or DASH,
    }


def shown(cells: Iterable[Cell]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return headings and rows; columns that hold nothing are left out."""
    rows = [row(cell) for cell in cells]
    headings = {key: name for key, name in HEADINGS.items() if any(one[key] != DASH for one in rows)}
    return headings, rows


def csv_text(cells: Iterable[Cell]) -> str:
    """Return cells as CSV, numbers unrounded, in seconds."""
    return rows_as_csv([flat(cell) for cell in cells])


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return flat rows as CSV; text that a spreadsheet would take for a formula begins with an apostrophe."""
    file = io.StringIO()
    # Runs need not have the same classes of text.
    names = dict.fromkeys(name for one in rows for name in one) or ["label"]
    writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _no_formula(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def flat(cell: Cell) -> dict[str, Any]:
    """Return one cell as a flat mapping; None where a value is not known or was withheld."""
    tree = cell.get("tree") or {}
    linear, plain = cell["against"].get("linear") or {}, cell["against"].get("plain") or {}
    found: dict[str, Any] = {
        **(cell.get("setting") or {}),
        "label": cell["label"],
        **{key: tree.get(key) for key in ("rule", "width", "budget", "beta", "g0", "keep_spine")},
        "gate": cell["gate"]["outcome"],
        **{key: cell[key] for key in ("num_requests", "num_failed", "accept_length", "accept_rate")},
        "median_round_s": (cell["round_s"] or {}).get("median"),
    }
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        found |= {f"{name}_{point}": (cell[name] or {}).get(point) for point in ("p50", "p90", "p99")}
    found |= {f"tok_s_{point}": (cell["tok_s"] or {}).get(point) for point in ("value", "min", "max")}
    other = cell["against"].get("other server") or {}
    for name, against in (("linear", linear), ("plain", plain), ("other", other)):
        speedup = against.get("speedup") or {}
        found |= {f"speedup_{name}_{point}": speedup.get(point) for point in ("value", "low", "high")}
    found |= {key: linear.get(key) for key in ("accept_ratio", "step_cost_ratio", "verdict")}
    return found | {f"accept_length_{name}": value for name, value in cell["accept_length_by_class"].items()}


def number(value: Any, digits: int = 2) -> str:
    """Return a number for people, text as it is, a dash for nothing."""
    if value is None or value == "":
        return DASH
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def mark(text: str, is_predicted: bool) -> str:
    """Return a value with the sign that says it was predicted and not measured."""
    return f"~{text}" if is_predicted and text != DASH else text


def interval(found: Mapping[str, Any] | None) -> str:
    """Return ``1.23 [1.10, 1.40]``, without bounds where there are none."""
    if not found:
        return DASH
    bounds = f" [{found['low']:.2f}, {found['high']:.2f}]" if found["low"] is not None else ""
    return f"{found['value']:.2f}{bounds}"


def best_lines(best: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Return one line for the best cell overall and of each class of text."""
    return [
        f"best {name}: {one['label']}, {number(one['speedup'])} over linear"
        + (" (predicted)" if one.get("is_predicted") else "")
        for name, one in best.items()
    ]


def even_lines(group: Mapping[str, Any]) -> Sequence[str]:
    """Return the break-even of each cell; the only tree cell's is the group's statement, and told there."""
    return [line for line in group["break_even"] if line != group["statement"]]


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_BEGINS) else value


def _gate(gate: Mapping[str, Any]) -> str:
    counts = {name: count for name, count in gate["verdicts"].items() if name != "identical"}
    return str(gate["outcome"]) + (f" ({', '.join(f'{n} {name}' for name, n in counts.items())})" if counts else "")


def _scaled(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _percentiles(found: Mapping[str, float] | None) -> str:
    if not found:
        return DASH
    return "/".join(f"{found[point] * 1000:.{0 if found['p50'] >= 0.1 else 1}f}" for point in ("p50", "p90", "p99"))


def _spread(found: Mapping[str, float] | None) -> str:
    if not found:
        return DASH
    spread = f" ({found['min']:.1f}-{found['max']:.1f})" if found["min"] != found["max"] else ""
    return f"{found['value']:.1f}{spread}"
