"""What a sweep knows without measuring: a predicted cell for every tree, and how far off the predictions were.

Accept lengths are exact. Times come from the cost model; the linear path as it was measured in the same run sets
their scale, so that a machine that has become slower since the calibration is slower for all. Plain data out; knows
nothing of servers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from jetspec_cli.bench.plan import Arm, BenchSpec
from jetspec_cli.bench.replay.scoring import Replayed, choose_live
from jetspec_cli.bench.replay.step_cost import StepCost
from jetspec_cli.bench.replay.times import RunTimes
from jetspec_cli.bench.rows import Row
from jetspec_cli.bench.speed import PREDICTED, PREDICTED_NOT_TO_PAY, PREDICTED_TO_PAY
from jetspec_cli.bench.summary import SPEED_KEYS, Cell, accept, derive_against_plain


class Prediction:
    """The predictions of one sweep.

    Args:
        spec: the whole grid.
        replayed: every arm's rounds.
        cost: the cost model.
        notes: what a reader must know of the recordings.

    Attributes:
        live_spec: the plan of what is measured: the baselines, and the cells on the front.
    """

    def __init__(
        self, spec: BenchSpec, replayed: Mapping[Arm, Sequence[Replayed]], cost: StepCost, notes: Sequence[str]
    ) -> None:
        self.spec = spec
        self.notes = list(notes)
        self._replayed = replayed
        self._linear = next(each for arm, each in replayed.items() if arm.label == "linear")
        self._cost = cost
        self._front = choose_live(replayed)
        wanted = {arm.label for arm in self._front}
        kept = (p for p in spec.pairings if p.label in wanted or all(arm.is_baseline for arm in p.arms))
        self.live_spec = replace(spec, pairings=tuple(kept))

    def complete(self, cells: Sequence[Cell], rows: Iterable[Row]) -> list[Cell]:
        """Return a cell for every arm of the grid, in its order: measured where there is one, else predicted.

        Args:
            cells: the measured ones; trees get a ``predicted`` entry that says what had been expected of them.
            rows: of the run.
        """
        times = RunTimes.of_run(self._cost, self._linear, (row for row in rows if row["arm"] == "linear"))
        measured = {cell["label"]: cell for cell in cells}
        found: list[Cell] = []
        for arm in self.spec.arms:
            cell = measured.get(arm.label)
            if arm.is_baseline:
                found += [] if cell is None else [cell]
                continue
            guess = self._cell(arm, times, measured.get("linear"))
            if cell is None:
                derive_against_plain(guess, measured.get("plain"))
                found.append(guess)
            else:
                found.append({**cell, "predicted": _held_against(guess, self._replayed[arm], cell)})
        return found

    def to_mapping(self, cells: Iterable[Cell]) -> dict[str, Any]:
        """Return what the document says of the replay; ``cells`` as ``complete`` returned them."""
        checked = [cell["predicted"] for cell in cells if cell.get("predicted") and not cell["num_failed"]]
        errors = [abs(one["tok_s_error"]) for one in checked if one["tok_s_error"] is not None]
        return {
            "num_recorded_prompts": len(self._linear),
            "num_recorded_tokens": sum(each.num_emitted_tokens for each in self._linear),
            "live_cells": [arm.label for arm in self._front],
            "step_cost": [point.to_mapping() for point in self._cost.points],
            "is_accept_exact": all(one["is_accept_exact"] for one in checked) if checked else None,
            "tok_s_error_mean": fmean(errors) if errors else None,
            "tok_s_error_max": max(errors) if errors else None,
        }

    def _cell(self, arm: Arm, times: RunTimes | None, linear: Cell | None) -> Cell:
        replayed = self._replayed[arm]
        cell: Cell = {
            "label": arm.label,
            "role": "tree",
            "tree": None if arm.tree is None else arm.tree.to_mapping(),
            "num_requests": 0,
            "num_failed": 0,
            "gate": {"outcome": PREDICTED, "verdicts": {}, "findings": []},
            **accept([each.counters() for each in replayed]),
            **dict.fromkeys(SPEED_KEYS),
            "against": {},
            "by_prompt": {},
        }
        if times is None or linear is None or not linear["tok_s"]:
            return cell
        against = self._against_linear(replayed, times)
        speed = linear["tok_s"]["value"] * against["speedup"]["value"]
        rounds = [seconds for each in replayed for seconds in times.tree_rounds_s(each)]
        cell["tok_s"] = {"value": speed, "min": speed, "max": speed}
        if rounds:
            cell["round_s"] = {"num": len(rounds), "median": median(rounds), "min": min(rounds), "max": max(rounds)}
        ratio = cell["accept_length"] / linear["accept_length"] if linear["accept_length"] else None
        cell["against"] = {"linear": {**against, "accept_ratio": ratio}}
        return cell

    def _against_linear(self, replayed: Sequence[Replayed], times: RunTimes) -> dict[str, Any]:
        classes: dict[str, list[Replayed]] = {}
        for each in replayed:
            classes.setdefault(each.text_class, []).append(each)
        own = [seconds for each in replayed for seconds in times.tree_rounds_s(each)]
        other = [seconds for each in self._linear for seconds in times.linear_rounds_s(each)]
        value = _speedup(replayed, times)
        return {
            "speedup": {"value": value, "low": None, "high": None, "num_units": len(replayed)},
            "step_cost_ratio": median(own) / median(other) if own and other else None,
            "verdict": PREDICTED_TO_PAY if value > 1 else PREDICTED_NOT_TO_PAY,
            "speedup_by_class": {name: _speedup(group, times) for name, group in sorted(classes.items())},
            "is_derived": False,
        }


def _speedup(replayed: Sequence[Replayed], times: RunTimes) -> float:
    linear = sum(times.linear_s[each.prompt_id] for each in replayed)
    return linear / sum(times.tree_s(each) for each in replayed)


def _held_against(guess: Cell, replayed: Sequence[Replayed], cell: Cell) -> dict[str, Any]:
    """Return what was expected of a measured cell, and how far off it was; speeds once every prompt was measured."""
    is_whole = all(each.prompt_id in cell["by_prompt"] for each in replayed)
    expected = guess["tok_s"] and guess["tok_s"]["value"]
    found = cell["tok_s"] and cell["tok_s"]["value"]
    return {
        "accept_length": guess["accept_length"],
        "is_accept_exact": all(_has_same_rounds(each, cell["by_prompt"].get(each.prompt_id)) for each in replayed),
        "tok_s": expected,
        "tok_s_error": expected / found - 1 if expected and found and is_whole else None,
        "speedup": guess["against"]["linear"]["speedup"]["value"] if guess["against"] else None,
    }


def _has_same_rounds(each: Replayed, sums: Sequence[float] | None) -> bool:
    """Whether live tokens and rounds, summed over all passes, are the replayed ones; True while there are none."""
    if sums is None:
        return True
    tokens, rounds = sums[:2]
    return tokens * (1 + len(each.rounds)) == rounds * each.num_emitted_tokens
