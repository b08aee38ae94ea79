"""Speeds of rows, and of two arms that were interleaved; the verdict whether a tree pays.

A tree pays when its accept ratio is greater than its step cost ratio (R16). Both are measured; so is the speedup,
whose interval decides the verdict. Knows plain rows only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jetspec_cli.bench.rows import Row
from jetspec_cli.bench.statistics import (
    Unit,
    busy_seconds,
    distribution,
    interval,
    ratio_of_sums,
    weighted_median,
)

PAYS = "pays"
DOES_NOT_PAY = "does not pay"
UNCLEAR = "unclear"
# Of cells that were replayed, not run: the gate's outcome, and the verdicts.
PREDICTED = "predicted"
PREDICTED_TO_PAY = "predicted to pay"
PREDICTED_NOT_TO_PAY = "predicted not to pay"


def of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the times and speeds of successful rows; None where nothing is known.

    ``tok_s`` is emitted tokens / seconds in which a request was running; its value is the median pass.
    """
    classes: dict[str, list[Row]] = {}
    for row in rows:
        classes.setdefault(row["class"], []).append(row)
    passes = passes_tok_s(rows)
    middle = distribution(passes)
    return {
        "ttft_s": distribution(row["ttft_s"] for row in rows),
        "tpot_s": distribution(row["tpot_s"] for row in rows),
        "e2e_s": distribution(row["e2e_s"] for row in rows),
        "round_s": round_time(rows),
        "tok_s": middle and {"value": middle["p50"], "min": middle["min"], "max": middle["max"]},
        "tok_s_by_class": {name: ratio_of_sums([_unit(group)]) for name, group in sorted(classes.items())},
        "tok_s_by_repeat": passes,
    }


def passes_tok_s(rows: Iterable[Row]) -> list[float]:
    """Return emitted tokens / busy seconds of every pass over the prompts, as far as tokens are counted."""
    passes: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        passes.setdefault((row["pairing"], row["repeat"]), []).append(row)
    speeds = (ratio_of_sums([_unit(group)]) for group in passes.values())
    return [speed for speed in speeds if speed]


def round_time(rows: Iterable[Row]) -> dict[str, float] | None:
    """Return num, median, min and max of a round's time over rows; the median weighs each request's by its rounds."""
    timed = [row["round_s"] for row in rows if row.get("round_s")]
    median = weighted_median((one["median"], one["num"]) for one in timed)
    if median is None:
        return None
    return {
        "num": sum(one["num"] for one in timed),
        "median": median,
        "min": min(one["min"] for one in timed),
        "max": max(one["max"] for one in timed),
    }


def paired(rows: Sequence[Row], arm: str, baseline: str, *, is_one_by_one: bool) -> dict[str, Any] | None:
    """Return an arm against a baseline that was interleaved with it; None when they share no successful block.

    Args:
        rows: successful rows of the pairings that hold both.
        arm, baseline: labels.
        is_one_by_one: a prompt is an independent unit; otherwise a pass over the set is.

    Returns:
        speedup (with interval), accept_ratio, step_cost_ratio, verdict, and the same by class of text.
    """
    by_key: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        by_key.setdefault((row["pairing"], row["repeat"], row["prompt_id"]), {})[row["arm"]] = row
    both = [(found[arm], found[baseline]) for found in by_key.values() if arm in found and baseline in found]
    if not both:
        return None
    classes: dict[str, list[tuple[Row, Row]]] = {}
    for own, other in both:
        classes.setdefault(own["class"], []).append((own, other))
    speedup = _speedup(both, is_one_by_one=is_one_by_one)
    return {
        "speedup": speedup,
        "accept_ratio": _ratio(_accept_length(own for own, _ in both), _accept_length(o for _, o in both)),
        "step_cost_ratio": _ratio(_median(own for own, _ in both), _median(other for _, other in both)),
        "verdict": verdict(speedup),
        "speedup_by_class": {
            name: _ratio(ratio_of_sums([_unit([a for a, _ in group])]), ratio_of_sums([_unit([b for _, b in group])]))
            for name, group in sorted(classes.items())
        },
        "is_derived": False,
    }


def verdict(speedup: dict[str, Any] | None) -> str:
    """Return whether a speedup is above one beyond its interval, below it, or neither."""
    if not speedup or speedup["low"] is None:
        return UNCLEAR
    if speedup["low"] > 1:
        return PAYS
    return DOES_NOT_PAY if speedup["high"] < 1 else UNCLEAR


def _speedup(both: Sequence[tuple[Row, Row]], *, is_one_by_one: bool) -> dict[str, Any] | None:
    groups: dict[Any, list[tuple[Row, Row]]] = {}
    for own, other in both:
        key = own["prompt_id"] if is_one_by_one else (own["pairing"], own["repeat"])
        groups.setdefault(key, []).append((own, other))
    mine = [_unit([own for own, _ in group]) for group in groups.values()]
    theirs = [_unit([other for _, other in group]) for group in groups.values()]
    return interval(mine, theirs)


def _unit(rows: Sequence[Row]) -> Unit:
    """Return the tokens of rows and the seconds in which they ran; blocks run one after the other."""
    blocks: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows:
        key = (row["pairing"], row["repeat"], row["block"], row["arm"])
        blocks.setdefault(key, []).append((row["started_s"], row["e2e_s"]))
    tokens = sum(row["num_emitted_tokens"] or 0 for row in rows)
    return Unit(amount=tokens, cost=sum(busy_seconds(spans) for spans in blocks.values()))


def _accept_length(rows: Iterable[Row]) -> float | None:
    counted = [row for row in rows if row.get("num_rounds")]
    rounds = sum(row["num_rounds"] for row in counted)
    return sum(row["num_emitted_tokens"] or 0 for row in counted) / rounds if rounds else None


def _median(rows: Iterable[Row]) -> float | None:
    timed = round_time(rows)
    return timed["median"] if timed else None


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None
