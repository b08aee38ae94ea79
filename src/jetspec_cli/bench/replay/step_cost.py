"""The cost model: how long a round takes, from its verify rows and its context.

A straight line over the context for each row count that was timed; between row counts the two nearest lines are
mixed, beyond them the nearest counts. The linear path has its own line, because it drafts one candidate a depth and
builds no tree. Knows nothing of servers and answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jetspec_engine.errors import EngineError


@dataclass(frozen=True, kw_only=True)
class StepPoint:
    """A timed round.

    Attributes:
        num_rows: nodes verified; None for the linear path.
        context: tokens before them.
        seconds: median.
    """

    num_rows: int | None
    context: float
    seconds: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {"num_rows": self.num_rows, "context": self.context, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds over context: ``base + slope * context``."""

    base: float
    slope: float

    @classmethod
    def through(cls, points: Iterable[StepPoint]) -> "Line":
        """Return the least-squares line; one context alone gives a flat one. Raises EngineError without a point."""
        known = list(points)
        if not known:
            raise EngineError("cost model: no round was timed")
        x = sum(point.context for point in known) / len(known)
        y = sum(point.seconds for point in known) / len(known)
        spread = sum((point.context - x) ** 2 for point in known)
        slope = sum((p.context - x) * (p.seconds - y) for p in known) / spread if spread else 0.0
        # A round never gets cheaper with more context, and it costs something without any; all else is noise.
        slope = min(max(slope, 0.0), y / x)
        return cls(base=y - slope * x, slope=slope)

    def at(self, context: float) -> float:
        """Return the seconds at a context."""
        return self.base + self.slope * context


class StepCost:
    """The fitted model.

    Args:
        points: of the linear path, and of trees with at least one row count.
    """

    def __init__(self, points: Iterable[StepPoint]) -> None:
        self.points = tuple(points)
        trees: dict[int, list[StepPoint]] = {}
        for point in self.points:
            if point.num_rows is not None:
                trees.setdefault(point.num_rows, []).append(point)
        self._linear = Line.through(point for point in self.points if point.num_rows is None)
        self._trees = [(rows, Line.through(trees[rows])) for rows in sorted(trees)]
        if not self._trees:
            raise EngineError("cost model: no tree round was timed")

    def linear_s(self, context: float) -> float:
        """Return the seconds of a linear round."""
        return self._linear.at(context)

    def tree_s(self, num_rows: int, context: float) -> float:
        """Return the seconds of a tree round."""
        below = [pair for pair in self._trees if pair[0] <= num_rows] or self._trees[:1]
        above = [pair for pair in self._trees if pair[0] >= num_rows] or self._trees[-1:]
        (low, low_line), (high, high_line) = below[-1], above[0]
        share = (num_rows - low) / (high - low) if high > low else 0.0
        return (1 - share) * low_line.at(context) + share * high_line.at(context)
