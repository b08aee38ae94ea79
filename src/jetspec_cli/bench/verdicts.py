"""What a reader wants to know first: does the tree pay, which cell is best, for which text. Knows cells only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jetspec_cli.bench.speed import PAYS, PREDICTED

Cell = Mapping[str, Any]
OVERALL = "overall"


def tree_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the tree cells that have a speedup over linear; cells whose gate failed have none."""
    return [cell for cell in cells if cell["role"] == "tree" and speedup(cell) is not None]


def speedup(cell: Cell, baseline: str = "linear") -> float | None:
    """Return a cell's speedup over a baseline, or None."""
    found = (cell["against"].get(baseline) or {}).get("speedup")
    return None if not found else float(found["value"])


def is_predicted(cell: Cell) -> bool:
    """Say whether a cell was replayed and not run."""
    return bool(cell["gate"]["outcome"] == PREDICTED)


def fastest(cells: Sequence[Cell]) -> Cell | None:
    """Return the fastest measured tree cell; the fastest predicted one when none was measured."""
    candidates = tree_cells(cells)
    measured = [cell for cell in candidates if not is_predicted(cell)]
    return max(measured or candidates, key=lambda cell: speedup(cell) or 0.0, default=None)


def best_cells(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the fastest tree cell overall and by class of text, against linear; empty without any.

    Overall a measured cell goes before predicted ones; by class all count, and ``is_predicted`` says which it is.
    """
    best = fastest(cells)
    if best is None:
        return {}
    candidates = tree_cells(cells)
    found = {OVERALL: _best(best, speedup(best), best["against"]["linear"]["verdict"])}
    for name in sorted({name for cell in candidates for name in cell["against"]["linear"]["speedup_by_class"]}):
        ranked = [(c["against"]["linear"]["speedup_by_class"].get(name) or 0.0, c) for c in candidates]
        value, cell = max(ranked, key=lambda pair: pair[0])
        # A class has too few prompts for an interval of its own, so there is a value and no verdict.
        found[name] = _best(cell, value, None)
    return found


def _best(cell: Cell, value: float | None, verdict: str | None) -> dict[str, Any]:
    return {"label": cell["label"], "speedup": value, "verdict": verdict, "is_predicted": is_predicted(cell)}


def break_even(cell: Cell) -> str:
    """Return one sentence that holds a cell's accept ratio against its step cost ratio (R16)."""
    found = cell["against"].get("linear") or {}
    accept_ratio, step_cost_ratio = found.get("accept_ratio"), found.get("step_cost_ratio")
    if accept_ratio is None or step_cost_ratio is None:
        return f"{cell['label']}: accept ratio and step cost ratio are not both known"
    relation = ">" if accept_ratio > step_cost_ratio else "<="
    sentence = f"{cell['label']}: accept ratio {accept_ratio:.3f} {relation} step cost ratio {step_cost_ratio:.3f}"
    one = found["speedup"]
    if not one:
        return sentence
    bounds = f" [{one['low']:.3f}, {one['high']:.3f}]" if one["low"] is not None else ""
    how = "predicted" if is_predicted(cell) else "measured"
    return f"{sentence}; {how} speedup over linear {one['value']:.3f}{bounds}: {found['verdict']}"


def statement(cells: Sequence[Cell]) -> str:
    """Return whether the tree pays, from the fastest cell; empty when no tree was held against linear."""
    best = fastest(cells)
    if best is None:
        return ""
    measured = [cell for cell in tree_cells(cells) if not is_predicted(cell)]
    num_predicted = len(tree_cells(cells)) - len(measured)
    num_pay = sum(1 for cell in measured if cell["against"]["linear"]["verdict"] == PAYS)
    others = f", {num_predicted} more were predicted" if num_predicted else ""
    kind = "measured tree cells" if num_predicted else "tree cells"
    head = f"{num_pay} of {len(measured)} {kind} pay{others}; the fastest is " if len(measured) > 1 or others else ""
    return head + break_even(best)
