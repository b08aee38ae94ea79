"""The report's data: W x B and beta x g0 matrices, break-even statements and best cells, from merged cells.

Plain data in, plain data out; ``reporting`` renders it. Knows nothing of formats.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jetspec_cli.bench.document import SCHEMA_VERSION
from jetspec_cli.bench.loading import Document, merge
from jetspec_cli.bench.verdicts import best_cells, break_even, is_predicted, speedup, statement, tree_cells
from jetspec_engine import __version__

Cell = Mapping[str, Any]
Axis = tuple[str, Callable[[Mapping[str, Any]], Any]]
CHAIN_NAME = "D+1"
GAP_RULE = "top2gap"


def _against_linear(key: str) -> Callable[[Cell], Any]:
    return lambda cell: (cell["against"].get("linear") or {}).get(key)


def report(documents: Sequence[Document]) -> dict[str, Any]:
    """Return everything a report shows.

    Args:
        documents: oldest first.
    """
    cells, notes = merge(documents)
    runs = [
        {
            "source": document.get("source", ""),
            "kind": document["kind"],
            "started_at": document.get("started_at", ""),
            "outcome": document.get("outcome", ""),
            "environment": document["environment"],
            "server": document["servers"][-1]["info"] if document["servers"] else {},
            "configuration": {k: v for k, v in document["configuration"].items() if k != "pairings"},
        }
        for document in documents
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "matrix",
        "tool": {"name": "jetspec", "version": __version__},
        "groups": [_group(setting, group) for setting, group in _by_setting(cells)],
        "runs": runs,
        "notes": [
            *notes,
            *_marks(cells),
            *dict.fromkeys(note for document in documents for note in document.get("notes") or ()),
        ],
    }


def _marks(cells: Iterable[Cell]) -> list[str]:
    is_needed = any(is_predicted(cell) for cell in cells)
    return ["~ marks what was predicted, by replay and a cost model, and not measured"] if is_needed else []


def verdict_of(cell: Cell) -> str:
    """Return a cell's verdict in words: whether it pays, or why nothing can be said."""
    outcome = cell["gate"]["outcome"]
    if outcome in ("failed", "inconclusive"):
        return f"gate {outcome}"
    found = cell["against"].get("linear")
    return str(found["verdict"]) if found else ""


def _round_ms(cell: Cell) -> float | None:
    """Return the median round in ms where it is all that was measured; elsewhere the table of cells has it."""
    return cell["round_s"]["median"] * 1e3 if cell.get("tok_s_at") and cell["round_s"] else None


METRICS: Mapping[str, tuple[str, Callable[[Cell], Any]]] = {
    "round_ms": ("ms a round", _round_ms),
    "speedup": ("speedup over linear", speedup),
    "speedup_plain": ("speedup over plain decoding", lambda cell: speedup(cell, "plain")),
    "accept_length": ("accept length", lambda cell: cell["accept_length"]),
    "accept_ratio": ("accept ratio to linear", _against_linear("accept_ratio")),
    "step_cost_ratio": ("step cost ratio to linear", _against_linear("step_cost_ratio")),
    "verdict": ("verdict", verdict_of),
}


TIMED = ("speedup", "speedup_plain", "step_cost_ratio")


def _by_setting(cells: Iterable[Cell]) -> list[tuple[dict[str, str], list[Cell]]]:
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell["setting"].values()), []).append(cell)
    return [(dict(group[0]["setting"]), group) for group in groups.values()]


def _group(setting: dict[str, str], cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "setting": setting,
        "statement": statement(cells),
        "break_even": [break_even(cell) for cell in tree_cells(cells)],
        "best": best_cells(cells),
        "matrices": [
            *_width_by_budget(cells),
            *_beta_by_gap(cells),
            *_by_class(cells),
            *_by_accept_length(cells),
        ],
        "cells": [{**cell, "verdict": verdict_of(cell)} for cell in cells],
    }


def _width_by_budget(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return W x B matrices, one set for each rule with its numbers."""
    groups: dict[str, list[Cell]] = {}
    for cell in _trees(cells):
        groups.setdefault(_rule_name(cell["tree"]), []).append(cell)
    return [
        matrix
        for name, group in groups.items()
        for matrix in _matrices(f"tree width x budget, {name}", SHAPE_AXES, group)
    ]


def _beta_by_gap(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return beta x g0 matrices, one set for each W and B that was measured with several of them."""
    groups: dict[str, list[Cell]] = {}
    for cell in _trees(cells):
        if cell["tree"]["rule"] == GAP_RULE:
            name = f"W{cell['tree']['width']} B{budget_of(cell['tree'])}"
            groups.setdefault(name, []).append(cell)
    return [
        matrix
        for name, group in groups.items()
        if len(group) > 1
        for matrix in _matrices(f"beta x g0, {name}", GAP_AXES, group)
    ]


def _by_class(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return accept length and speedup of every drafting cell by class of text; none without at least two classes."""
    drafting = [cell for cell in cells if cell["role"] != "plain" and cell["accept_length_by_class"]]
    classes = sorted({name for cell in drafting for name in cell["accept_length_by_class"]})
    if len(classes) < 2:
        return []
    shape = {"row_name": "cell", "column_name": "class", "rows": [cell["label"] for cell in drafting]}
    lengths = [[cell["accept_length_by_class"].get(name) for name in classes] for cell in drafting]
    known = [[value for value in line if value is not None] for line in lengths]
    means = [sum(line) / len(line) if line else None for line in known]
    found = [
        {
            "title": "accept length by class of text",
            "metric": "accept_length_by_class",
            **shape,
            "columns": [*classes, "class mean", "pooled"],
            "values": [
                [*line, mean, cell["accept_length"]] for line, mean, cell in zip(lengths, means, drafting, strict=True)
            ],
            "is_predicted": [[False] * (len(classes) + 2)] * len(drafting),
        }
    ]
    trees = tree_cells(drafting)
    if trees:
        by_class = [cell["against"]["linear"]["speedup_by_class"] for cell in trees]
        found.append(
            {
                "title": "speedup over linear by class of text",
                "metric": "speedup_by_class",
                **shape,
                "rows": [cell["label"] for cell in trees],
                "columns": classes,
                "values": [[speedups.get(name) for name in classes] for speedups in by_class],
                "is_predicted": [[is_predicted(cell)] * len(classes) for cell in trees],
            }
        )
    return found


def _by_accept_length(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the tok/s of cells of which only step costs were measured, at the accept lengths the document states."""
    costed = [cell for cell in cells if cell.get("tok_s_at")]
    lengths = sorted({length for cell in costed for length in cell["tok_s_at"]}, key=float)
    if not costed:
        return []
    return [
        {
            "title": "tok/s by accept length (derived: accept length / ms a round)",
            "metric": "tok_s_at",
            "row_name": "cell",
            "column_name": "accept length",
            "rows": [cell["label"] for cell in costed],
            "columns": lengths,
            "values": [[cell["tok_s_at"].get(length) for length in lengths] for cell in costed],
            "is_predicted": [[False] * len(lengths)] * len(costed),
        }
    ]


def _matrices(title: str, axes: tuple[Axis, Axis], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    (row_name, row_of), (column_name, column_of) = axes
    rows = sorted({row_of(cell["tree"]) for cell in cells}, key=_order)
    columns = sorted({column_of(cell["tree"]) for cell in cells}, key=_order)
    found = []
    by_place = {(row_of(cell["tree"]), column_of(cell["tree"])): cell for cell in cells}
    for metric, (name, value_of) in METRICS.items():

        def each(read: Callable[[Cell], Any]) -> list[list[Any]]:
            places = [[by_place.get((row, column)) for column in columns] for row in rows]
            return [[None if cell is None else read(cell) for cell in line] for line in places]

        values = each(value_of)
        # Replayed accept lengths are exact, and a verdict says by itself that it is predicted.
        guesses = each(is_predicted if metric in TIMED else lambda _: False)
        if any(value not in (None, "") for line in values for value in line):
            shape = {"row_name": row_name, "column_name": column_name, "rows": rows, "columns": columns}
            found.append(
                {"title": f"{name} by {title}", "metric": metric, **shape, "values": values, "is_predicted": guesses}
            )
    return found


def budget_of(tree: Mapping[str, Any]) -> int | str:
    """Return a tree's budget; D+1 where it follows the head's depth."""
    return CHAIN_NAME if tree["budget"] is None else int(tree["budget"])


SHAPE_AXES: tuple[Axis, Axis] = (("W", lambda tree: tree["width"]), ("B", budget_of))
GAP_AXES: tuple[Axis, Axis] = (("beta", lambda tree: tree["beta"]), ("g0", lambda tree: tree["g0"]))


def _trees(cells: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell["role"] == "tree" and cell["tree"]]


def _rule_name(tree: Mapping[str, Any]) -> str:
    words = [str(tree["rule"])]
    if tree["rule"] == GAP_RULE:
        words.append(f"beta {tree['beta']:g} g0 {tree['g0']:g}")
    return " ".join([*words, *(["spine"] if tree["keep_spine"] else [])])


def _order(value: float | str) -> tuple[bool, float]:
    return (True, float(value)) if not isinstance(value, str) else (False, 0.0)
