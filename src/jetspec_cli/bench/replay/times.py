"""From replayed rounds to seconds: the cost model, put on the scale of the linear path as this run measured it.

Knows nothing of cells and documents.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Self

from jetspec_cli.bench.replay.scoring import Replayed
from jetspec_cli.bench.replay.step_cost import StepCost
from jetspec_cli.bench.rows import Row

# What the engine counts as a round's own time, prefill left out.
PHASES = ("draft", "build", "verify", "accept", "commit")


class RunTimes:
    """Times of one run.

    Args:
        cost: the cost model.
        linear: the linear path replayed.
        rows: the linear path measured, successful requests, every prompt at least once.

    Attributes:
        linear_s: measured mean seconds of a linear request, by prompt.
    """

    def __init__(self, cost: StepCost, linear: Sequence[Replayed], rows: Sequence[Row]) -> None:
        self._cost = cost
        by_prompt: dict[str, list[Row]] = {}
        for row in rows:
            by_prompt.setdefault(row["prompt_id"], []).append(row)
        self.linear_s = _means(by_prompt, "e2e_s")
        self._ttft_s = _means(by_prompt, "ttft_s")
        measured = {name: fmean(_phases(row) for row in group) for name, group in by_prompt.items()}
        modelled = sum(sum(cost.linear_s(context) for context in each.contexts) for each in linear)
        self._scale = sum(measured[each.prompt_id] for each in linear) / modelled if modelled else 1.0
        outside = float(sum(row["e2e_s"] - row["ttft_s"] - _phases(row) for row in rows))
        self._gap_s: float = max(0.0, outside / max(1, sum(row["num_rounds"] - 1 for row in rows)))

    @classmethod
    def of_run(cls, cost: StepCost, linear: Sequence[Replayed], rows: Iterable[Row]) -> Self | None:
        """Return the times, or None until every prompt was measured on the linear path."""
        known = [row for row in rows if row["is_ok"] and row["ttft_s"] is not None and row["phase_s"]]
        is_whole = {each.prompt_id for each in linear} <= {row["prompt_id"] for row in known}
        return cls(cost, linear, known) if known and is_whole else None

    def linear_rounds_s(self, each: Replayed) -> list[float]:
        """Return the seconds of each linear round of a request, prefill left out."""
        return [self._scale * self._cost.linear_s(context) for context in each.contexts]

    def tree_rounds_s(self, each: Replayed) -> list[float]:
        """Return the seconds of each tree round of a request, prefill left out."""
        pairs = zip(each.rounds, each.contexts, strict=True)
        return [self._scale * self._cost.tree_s(one.num_nodes, context) for one, context in pairs]

    def tree_s(self, each: Replayed) -> float:
        """Return the seconds of a request under a tree, as its client would see them.

        The first token takes what it takes on the linear path: no tree has a part in the prefill.
        """
        rounds = self.tree_rounds_s(each)
        return self._ttft_s[each.prompt_id] + sum(rounds) + self._gap_s * len(rounds)


def _means(by_prompt: dict[str, list[Row]], key: str) -> dict[str, float]:
    return {name: fmean(row[key] for row in group) for name, group in by_prompt.items()}


def _phases(row: Row) -> float:
    return float(sum(row["phase_s"].get(name, 0.0) for name in PHASES))
