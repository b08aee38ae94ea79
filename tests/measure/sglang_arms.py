"""Interleaved timing of several settings on running SGLang servers, and what is made of the times.

A machine drifts, so all arms take turns: every turn visits each arm once, odd turns backwards. A failing arm is noted
and left; the others go on. Knows nothing of models and of how servers start.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from tests.measure.sglang_server import Server, ServerFailedError, Timed

from jetspec_cli import console, exit_codes
from jetspec_engine.config import TreeConfig

Generate = Callable[[Server, int], list[Timed]]  # a server and the turn's number, from -1 on


@dataclass(kw_only=True)
class Arm:
    """One setting on one server.

    Args:
        name: unique.
        server: a started one.
        kind: plain, linear, or tree.
        rows: rows of the target's forward.
        tree: set before every turn, None where the server has none.
    """

    name: str
    server: Server
    kind: str
    rows: int
    tree: TreeConfig | None = None
    turns: list[list[Timed]] = field(default_factory=list)
    error: str | None = None

    def run(self, generate: Generate, turn: int) -> None:
        """Take a turn, or note why it failed."""
        try:
            if self.tree is not None:
                self.server.switch(self.tree)
            self.turns.append(generate(self.server, turn))
        except ServerFailedError as error:
            self.error = str(error)[:600]

    def speeds(self) -> list[float]:
        """Return tokens a second by turn, prefills excluded."""
        return [
            sum(len(one.ids) - 1 for one in turn) / max(1e-9, sum(one.seconds for one in turn)) for turn in self.turns
        ]

    def summary(self) -> dict[str, Any]:
        """Return the arm's figures as plain data."""
        facts = {
            "arm": self.name, "kind": self.kind, "rows": self.rows, "turns": len(self.turns), "error": self.error,
            "tree": None if self.tree is None else self.tree.to_mapping(),
        }  # fmt: skip
        if not self.turns:
            return facts
        each = [sum(one.seconds for one in turn) / max(1, sum(one.rounds for one in turn)) * 1e3 for turn in self.turns]
        speeds = self.speeds()
        last = self.turns[-1]
        return facts | {
            "ms_a_round": round(median(each), 4),
            "ms_a_round_by_turn": [round(value, 4) for value in each],
            "tokens_per_s": round(median(speeds), 2),
            "tokens_per_s_by_turn": [round(value, 2) for value in speeds],
            "tokens": sum(len(one.ids) for one in last),
            "rounds": sum(one.rounds for one in last),
            "accept_length": round(sum(len(one.ids) - 1 for one in last) / max(1, sum(one.rounds for one in last)), 4),
            "graph_rounds": sum(one.num_graph for turn in self.turns for one in turn),
            "counted_rounds": sum(one.num_counted for turn in self.turns for one in turn),
            "is_repeatable": all([one.ids for one in turn] == [one.ids for one in last] for turn in self.turns),
        }


def take_turns(
    arms: Sequence[Arm], num_turns: int, generate: Generate, deadline: float, say: Any = print,
    keep: Callable[[], Any] = lambda: None,
) -> None:  # fmt: skip
    """Warm every arm up once, then let all take turns until done, late, or all have failed.

    Args:
        arms: in order; an arm of a server that is not up has an error already.
        num_turns: wanted.
        generate: what an arm does in its turn.
        deadline: of ``time.monotonic()``; no turn begins after it, and each begun is finished.
        say: told about failures and the time.
        keep: called after every turn, so that an interrupted run loses one turn at most.
    """
    begin = time.monotonic()
    for turn in range(-1, num_turns):
        if all(arm.error is not None for arm in arms):
            say("no arm is left to measure")
            break
        if time.monotonic() > deadline:
            say(f"out of time after {max(0, turn)} turns")
            break
        for arm in arms if turn % 2 else reversed(arms):
            if arm.error is None:
                arm.run(generate, turn)
                if arm.error is not None:
                    say(f"{arm.name}: {arm.error}")
        if turn < 0:
            for arm in arms:
                arm.turns.clear()
        if turn < 5 or turn % 10 == 9:
            say(f"turn {turn + 1}/{num_turns}: {time.monotonic() - begin:.1f} s")
        keep()


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], resamples: int = 2000) -> list[float] | None:
    """Return low, median and high of the ratio turn by turn: a 95 % bootstrap interval; None below 5 turns."""
    ratios = [our / their for our, their in zip(ours, theirs, strict=False)]
    if len(ratios) < 5:
        return None
    rng = random.Random(0)
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    low, high = (medians[int(resamples * part)] for part in (0.025, 0.975))
    return [round(value, 4) for value in (low, median(ratios), high)]


def wait_for(file: Path | None, deadline: float, say: Any = print) -> None:
    """Say in FILE.up that servers are up, and wait until somebody else says in FILE that nothing else runs."""
    if file is None:
        return
    file.with_name(f"{file.name}.up").touch()
    while not file.exists():
        if time.monotonic() > deadline:
            say(f"{file.name} has not come: measuring beside whatever runs")
            return
        time.sleep(0.3)


def exit_if_nothing_ran(figures: Sequence[Mapping[str, Any]], logs: Path) -> None:
    """End the process with exit code 6 when no arm has a turn: no server came up, or every request failed.

    Args:
        figures: the summaries of all arms.
        logs: folder of the servers' logs.
    """
    if not any(each["turns"] for each in figures):
        what = "nothing was measured: no server came up, or all that did failed"
        console.error(what, f"see {logs}/log-*.txt", exit_codes.ENGINE_FAILED, as_json=False)
        sys.exit(exit_codes.ENGINE_FAILED)


@cache
def find_environment() -> dict[str, Any]:
    """Return the GPU, its driver and the versions that matter, without a CUDA context."""
    versions = {}
    for name in ("sglang", "torch", "triton", "flashinfer_python"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.limit", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.split("\n")
    except OSError:
        gpus = []
    return {"gpus": [line for line in gpus if line], "versions": versions}
