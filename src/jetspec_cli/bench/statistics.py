"""Percentiles, weighted medians and bootstrap intervals, in the standard library only.

Source: the percentile bootstrap, Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
# Below this many independent units an interval would pretend to a knowledge that is not there.
MIN_UNITS = 3


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one independent unit (a prompt, or a pass over the set) adds to a ratio of sums on one side."""

    amount: float
    cost: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one value, linear between neighbours; percent in [0, 100]."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return num, mean, p50, p90, p99, min and max of the values that are there; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "num": len(known),
        "mean": sum(known) / len(known),
        "p50": percentile(known, 50),
        "p90": percentile(known, 90),
        "p99": percentile(known, 99),
        "min": min(known),
        "max": max(known),
    }


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the median of (value, weight) pairs: half of the weight lies on each side; None without weight."""
    ordered = sorted((value, weight) for value, weight in pairs if weight > 0)
    half = sum(weight for _, weight in ordered) / 2
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return None


def ratio_of_sums(units: Sequence[Unit]) -> float | None:
    """Return sum of amounts / sum of costs; None without cost."""
    cost = sum(unit.cost for unit in units)
    return sum(unit.amount for unit in units) / cost if cost > 0 else None


def interval(own: Sequence[Unit], other: Sequence[Unit] | None = None) -> dict[str, float | int | None] | None:
    """Return a ratio of sums, divided by another one's where given, with its 95 % bootstrap interval.

    Args:
        own: units of one side.
        other: the same units on the other side, in the same order; both are resampled together.

    Returns:
        value, low, high, num_units; low and high are None below three units. None when there is no value.
    """
    found = _interval(tuple(own), None if other is None else tuple(other))
    return None if found is None else dict(found)


# A long sweep's document is built after every cell; what has not changed is not resampled again.
@lru_cache(maxsize=4096)
def _interval(own: tuple[Unit, ...], other: tuple[Unit, ...] | None) -> Mapping[str, float | int | None] | None:
    everyone = range(len(own))
    value = _ratio(own, other, everyone)
    if value is None:
        return None
    if len(own) < MIN_UNITS:
        return {"value": value, "low": None, "high": None, "num_units": len(own)}
    # The same seed every time: the same rows give the same interval.
    source = random.Random(0)
    drawn = (_ratio(own, other, source.choices(everyone, k=len(own))) for _ in range(NUM_RESAMPLES))
    ratios = [ratio for ratio in drawn if ratio is not None]
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = percentile(ratios, tail), percentile(ratios, 100 - tail)
    return {"value": value, "low": low, "high": high, "num_units": len(own)}


def _ratio(own: Sequence[Unit], other: Sequence[Unit] | None, chosen: Sequence[int]) -> float | None:
    top = ratio_of_sums([own[index] for index in chosen])
    if other is None or top is None:
        return top
    bottom = ratio_of_sums([other[index] for index in chosen])
    return top / bottom if bottom else None


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the (start, duration) spans was running."""
    total, end = 0.0, float("-inf")
    for start, duration in sorted(spans):
        stop = start + duration
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
