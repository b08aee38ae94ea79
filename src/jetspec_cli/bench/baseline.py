"""Two runs held against each other: which cells became slower, accept less or failed their gate, beyond noise.

Measured cells meet by configuration and load, prompts by id; both runs' prompts are resampled together. A difference
counts when its whole interval lies beyond the spread of the runs' own passes. Speeds of two machines are not compared.
Knows documents' cells only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jetspec_cli.bench.statistics import Unit, interval
from jetspec_cli.bench.summary import WITHHELD
from jetspec_cli.bench.verdicts import is_predicted

Cell = Mapping[str, Any]
METRICS = ("tok_s", "accept_length")
METRICS_OF_ANY_MACHINE = ("accept_length",)


def compare(new: Iterable[Cell], old: Iterable[Cell]) -> dict[str, Any]:
    """Return rows (one a cell and metric), the number of cells that met, the regressions among the rows, and notes.

    Args:
        new, old: merged cells, with ``setting``.
    """
    by_key = {_key(cell): cell for cell in old}
    rows: list[dict[str, Any]] = []
    num_met = 0
    machines: dict[str, None] = {}
    for cell in new:
        before = by_key.get(_key(cell))
        if before is None or is_predicted(cell) or is_predicted(before):
            continue
        num_met += 1
        was, now = before["details"]["machine"], cell["details"]["machine"]
        if was != now:
            machines[f"baseline: measured on {was}, this on {now}: speeds are not compared"] = None
        rows += _rows(cell, before, METRICS if was == now else METRICS_OF_ANY_MACHINE)
    regressions = [row for row in rows if row["is_regression"]]
    return {"num_met": num_met, "rows": rows, "regressions": regressions, "notes": list(machines)}


def _rows(cell: Cell, before: Cell, metrics: Iterable[str]) -> list[dict[str, Any]]:
    was, now = before["gate"]["outcome"], cell["gate"]["outcome"]
    label = cell["label"]
    if now in WITHHELD and was not in WITHHELD:
        row = {"label": label, "metric": "gate", "old": was, "new": now, "ratio": None, "noise": None}
        return [{**row, "is_regression": True}]
    rows = []
    for metric in metrics:
        units = _units(cell, before, metric)
        found = interval(*units)
        if found is None or cell["gate"]["outcome"] in WITHHELD or before["gate"]["outcome"] in WITHHELD:
            continue
        noise = max(_noise(cell), _noise(before)) if metric == "tok_s" else 0.0
        high = found["high"] if found["high"] is not None else found["value"]
        rows.append(
            {
                "label": label,
                "metric": metric,
                "old": _ratio(units[1]),
                "new": _ratio(units[0]),
                "ratio": found,
                "noise": noise,
                "is_regression": high is not None and high < 1 - noise,
            }
        )
    return rows


def _units(cell: Cell, before: Cell, metric: str) -> tuple[list[Unit], list[Unit]]:
    shared = [name for name in cell["by_prompt"] if name in before["by_prompt"]]
    place = 2 if metric == "tok_s" else 1

    def side(one: Cell) -> list[Unit]:
        sums: Sequence[Sequence[float]] = [one["by_prompt"][name] for name in shared]
        return [Unit(amount=each[0], cost=each[place]) for each in sums]

    return side(cell), side(before)


def _ratio(units: Sequence[Unit]) -> float | None:
    cost = sum(unit.cost for unit in units)
    return sum(unit.amount for unit in units) / cost if cost else None


def _noise(cell: Cell) -> float:
    """Return half the relative spread of a cell's passes."""
    spread = cell.get("tok_s")
    return (spread["max"] - spread["min"]) / 2 / spread["value"] if spread else 0.0


def _key(cell: Cell) -> tuple[str, ...]:
    setting, details = cell["setting"], cell["details"]
    names = ("target", "engine", "dtype", "prompts", "concurrency")
    return (*(setting[name] for name in names), details["cap"], details["rate"], cell["label"])
