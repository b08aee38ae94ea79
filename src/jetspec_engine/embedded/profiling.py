"""Profiles rounds: seconds by phase, by kernel, a trace for Perfetto, and the gap to the memory floor.

The rounds run twice: once timed by the clock alone, which gives the phases, and once under torch's profiler, whose own
cost would distort them, which gives the kernels and the trace. Runs on the engine's thread, alone. Knows nothing of
HTTP and of files.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from jetspec_engine.embedded.prefix_cache import PrefixCache
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.round import (
    Parts,
    Turn,
    accept,
    build,
    commit,
    draft,
    prefill,
    run_round,
    usable_depth,
    verify,
)
from jetspec_engine.embedded.scheduler import Scheduler
from jetspec_engine.embedded.traffic import floor_s, read_bandwidth
from jetspec_engine.errors import EngineError

NUM_WARM_ROUNDS = 3
# A round of a small model is thousands of events; beyond these a trace is too large to open.
MAX_TRACED_ROUNDS = 10
MAX_KERNELS = 40
SPAN = "jetspec "
Phases = dict[str, list[float]]


def profile_rounds(
    request: ActiveRequest,
    parts: Parts,
    cache: PrefixCache,
    *,
    num_rounds: int,
    sizes: Mapping[str, int] | None,
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    """Decode a request and profile its rounds.

    Args:
        request: not yet waiting anywhere; long enough for both passes, or fewer rounds are profiled.
        parts: with the tree to profile.
        cache: lends the region.
        num_rounds: rounds of each pass.
        sizes: from ``traffic.round_bytes``; None leaves the floor out.
        should_stop: asked between rounds.

    Returns:
        num_rounds, num_context_tokens, phase_s and round_s (medians), kernels, floor (or None), trace (an object in
        Chrome's trace format).

    Raises:
        EngineError: decoding failed, was stopped, or ended before anything was timed.
    """
    with _running(request, parts, cache) as device:
        run = _Passes(request, parts, device, should_stop)
        run.warm_up()
        context = request.length
        phases, totals = run.timed(num_rounds)
        context = (context + request.length) // 2
        kernels, trace = run.profiled(num_rounds)
    if not totals:
        raise EngineError("profile: the answer ended before a round could be timed")
    medians = {name: statistics.median(seconds) for name, seconds in phases.items()}
    return {
        "num_rounds": len(totals),
        "num_context_tokens": context,
        "phase_s": medians,
        "round_s": statistics.median(totals),
        "kernels": kernels,
        "floor": None if sizes is None else _floor(sizes, context, device, medians, parts),
        "trace": trace,
    }


class _Passes:
    """The passes over one request's rounds; each goes on where the one before it stopped."""

    def __init__(
        self, request: ActiveRequest, parts: Parts, device: torch.device, should_stop: Callable[[], bool]
    ) -> None:
        self._request, self._parts, self._device, self._should_stop = request, parts, device, should_stop

    def warm_up(self) -> None:
        """Prefill, and run the first rounds, which pay for what is made once."""
        while self._request.finish is None and not self._request.is_prefilled:
            prefill(self._request, self._parts)
        for _ in range(NUM_WARM_ROUNDS):
            if self._may_go_on():
                run_round([self._request], self._parts)

    def timed(self, count: int) -> tuple[Phases, list[float]]:
        """Return seconds by phase, and of each round."""
        phases: Phases = {}
        totals: list[float] = []
        while len(totals) < count and self._may_go_on():
            begin = time.perf_counter()
            for name, run in self._verbs():
                started = time.perf_counter()
                run()
                self._wait()
                phases.setdefault(name, []).append(time.perf_counter() - started)
            totals.append(time.perf_counter() - begin)
        return phases, totals

    def profiled(self, count: int) -> tuple[list[dict[str, Any]], Any]:
        """Return seconds by kernel, and the trace."""
        is_cuda = self._device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        done = 0
        with profile(activities=activities) as profiler:
            while done < min(count, MAX_TRACED_ROUNDS) and self._may_go_on():
                for name, run in self._verbs():
                    with record_function(SPAN + name):
                        run()
                done += 1
            self._wait()
        return _kernels(profiler, max(1, done), is_cuda=is_cuda), _trace(profiler)

    def _verbs(self) -> Iterator[tuple[str, Callable[[], None]]]:
        turns = [Turn(request=self._request, depth=usable_depth(self._request, self._parts))]
        yield "draft", lambda: draft(turns, self._parts)
        yield "build", lambda: build(turns, self._parts)
        yield "verify", lambda: verify(turns, self._parts)
        yield "accept", lambda: accept(turns)
        yield "commit", lambda: commit(turns, self._parts)

    def _may_go_on(self) -> bool:
        if self._should_stop():
            raise EngineError("profile: the engine is closing")
        finish = self._request.finish
        if finish is not None and finish.kind == "error":
            raise EngineError(finish.message)
        return finish is None

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@contextmanager
def _running(request: ActiveRequest, parts: Parts, cache: PrefixCache) -> Iterator[torch.device]:
    """Give a request a region while the block runs; yields the target's device."""
    scheduler = Scheduler(cache, max_running=1)
    scheduler.waiting.append(request)
    try:
        scheduler.admit(parts)
        yield getattr(parts.target, "device", torch.device("cpu"))
    finally:
        request.fail(EngineError("profile: done"))
        scheduler.take_finished()


def _kernels(profiler: Any, num_rounds: int, *, is_cuda: bool) -> list[dict[str, Any]]:
    """Return name, calls a round and own seconds a round of the kernels, longest first; the last one is the rest."""
    field = "self_device_time_total" if is_cuda else "self_cpu_time_total"
    rows = [
        {
            "name": _name(event.key),
            "calls": event.count / num_rounds,
            "self_s": getattr(event, field) / 1e6 / num_rounds,
        }
        for event in profiler.key_averages()
        if getattr(event, field) > 0 and not (is_cuda and event.key.startswith(SPAN))
    ]
    rows.sort(key=lambda row: -row["self_s"])
    rest = rows[MAX_KERNELS:]
    if rest:
        sums = {key: sum(row[key] for row in rest) for key in ("calls", "self_s")}
        rows = [*rows[:MAX_KERNELS], {"name": f"{len(rest)} others", **sums}]
    return rows


def _name(key: str) -> str:
    """Return an operation's name; what a phase spends outside of all operations goes by the phase's."""
    return f"{key.removeprefix(SPAN)}, outside torch" if key.startswith(SPAN) else key


def _trace(profiler: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    # Whose machine it was is nobody's business.
    trace.pop("host_name", None)
    return trace


def _floor(
    sizes: Mapping[str, int], context: int, device: torch.device, phases: Mapping[str, float], parts: Parts
) -> dict[str, Any]:
    bandwidth = read_bandwidth(device)
    least = floor_s(sizes, context, bandwidth)
    if not parts.is_drafting:
        least["draft"] = 0.0
    return {
        "bandwidth_bytes_s": bandwidth,
        "bytes": dict(sizes),
        "least_s": least,
        "gap": {name: phases[name] / least[name] for name in least if least[name] > 0},
    }
