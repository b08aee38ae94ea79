"""Where a round's time goes on the GPU, from a torch.profiler trace of an SGLang server.

All kernels of one CUDA graph launch share a correlation id, so a graph is a correlation with many kernels: the larger
one is the target's verify (or plain decoding's forward), the smaller the draft's. What runs outside graphs is told
apart by where it stands. Kernel times are true under the profiler; the gaps are not, so a gap is reported against the
milliseconds a round measured without it. Knows names of our kernels and nothing of servers.
"""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

LEAST_OF_A_GRAPH = 20
TOP_W, BUILD, MOVE = "_best_of", ("_rank", "_grow", "_lay_out"), "_move"
VERIFY_ATTENTION = ("_prefix", "_tail")
# Ours and SGLang's of gated-delta layers; its scatter commits what they kept.
STATE = ("_delta", "_convolve", "fused_sigmoid_gating_delta_rule", "_causal_conv1d_update")
COMMIT = ("_fused_mamba_state_scatter", "_fused_conv_window_scatter")
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
PHASES = (
    "draft forward", "LM head for drafts", "top W", "script (measurement only)", "build and layout",
    "stage verify", "verify: attention", "verify: recurrent state", "verify: experts", "verify: rest",
    "accept and move", "commit of recurrent state", "append to the head's cache and next inputs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel, copy or fill on the GPU, in microseconds."""

    name: str
    start: float
    length: float
    launch: int
    is_kernel: bool

    @property
    def end(self) -> float:
        """When it is over."""
        return self.start + self.length


def read_trace(path: Path) -> list[Work]:
    """Return what ran on the GPU, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    works = [
        Work(
            name=event["name"], start=float(event["ts"]), length=float(event["dur"]),
            launch=int(event["args"].get("correlation", -1)), is_kernel=event["cat"] == "kernel",
        )
        for event in events if event.get("ph") == "X" and event.get("cat") in GPU_EVENTS
    ]  # fmt: skip
    return sorted(works, key=lambda work: work.start)


def phase_times(works: Sequence[Work]) -> dict[str, Any]:
    """Return the microseconds of each phase in a round, the median over rounds.

    Returns:
        ``rounds``; ``us`` by phase; ``busy_us`` (any kernel running), ``span_us`` (a round under the profiler);
        ``kernels`` a round; ``longest``, kernels by total time.
    """
    counts = Counter(work.launch for work in works if work.is_kernel)
    graphs = {launch: count for launch, count in counts.items() if count >= LEAST_OF_A_GRAPH}
    if not graphs:
        return {"error": f"no CUDA graph among {len(works)} works", "rounds": 0}
    has_draft = max(graphs.values()) > 1.5 * min(graphs.values())
    middle = (max(graphs.values()) + min(graphs.values())) / 2
    targets = {launch for launch, count in graphs.items() if count > middle or not has_draft}
    heads = _first_indices(works, set(graphs) - targets if has_draft else targets)
    rounds = [works[begin:end] for begin, end in pairwise(heads)]
    # A prefill stands between two rounds too, and a round it stands in is none.
    spans = [each[-1].end - each[0].start for each in rounds]
    usual = median(spans) if spans else 0.0
    rounds = [each for each, span in zip(rounds, spans, strict=True) if span < 2 * usual]
    if not rounds:
        return {"error": "fewer than two whole rounds", "rounds": 0}
    split = [_split(each, targets, set(graphs) - targets) for each in rounds]
    return {
        "rounds": len(rounds),
        "us": {name: round(median(each.get(name, 0.0) for each in split), 2) for name in PHASES},
        "busy_us": round(median(_busy(each) for each in rounds), 2),
        "span_us": round(median(after[0].start - before[0].start for before, after in pairwise(rounds)), 2)
        if len(rounds) > 1
        else None,
        "kernels": median(sum(work.is_kernel for work in each) for each in rounds),
        "longest": _longest(rounds),
    }


def _first_indices(works: Sequence[Work], launches: set[int]) -> list[int]:
    seen: set[int] = set()
    found = []
    for index, work in enumerate(works):
        if work.launch in launches and work.launch not in seen:
            seen.add(work.launch)
            found.append(index)
    return found


def _split(works: Sequence[Work], targets: set[int], drafts: set[int]) -> dict[str, float]:
    """Add up a round's phases; the round begins with its draft."""
    drafted = [work for work in works if work.launch in drafts]
    times = _split_draft(drafted)
    verified = moved = False
    has_move = any(_is(work, MOVE) for work in works)
    for work in works:
        if work.launch in drafts:
            continue
        if work.launch in targets:
            verified = True
            phase = _phase_of_verify(work)
        elif not verified:
            phase = "stage verify"
        elif work.name.startswith(COMMIT):
            phase = "commit of recurrent state"
        elif not has_move or not moved:
            phase = "accept and move"
            moved = moved or _is(work, MOVE)
        else:
            phase = "append to the head's cache and next inputs"
        times[phase] += work.length
    return times


def _phase_of_verify(work: Work) -> str:
    if work.name.startswith(STATE):
        return "verify: recurrent state"
    if "moe" in work.name.lower():
        return "verify: experts"
    return "verify: attention" if _is_attention(work) else "verify: rest"


def _split_draft(works: Sequence[Work]) -> dict[str, float]:
    times: dict[str, float] = defaultdict(float)
    tops = [index for index, work in enumerate(works) if work.name.startswith(TOP_W)]
    # The LM head is the longest of the few kernels in front of the candidates' choice; without one, of the last few.
    border = tops[0] if tops else len(works)
    near = range(max(0, border - (3 if tops else 12)), border)
    lm_head = max(near, key=lambda index: works[index].length, default=-1)
    for index, work in enumerate(works):
        if index == lm_head:
            phase = "LM head for drafts"
        elif index < lm_head or not tops:
            phase = "draft forward"
        elif work.name.startswith(TOP_W):
            phase = "top W"
        else:
            phase = "build and layout" if work.name.startswith(BUILD) else "script (measurement only)"
        times[phase] += work.length
    return times


def _is(work: Work, name: str) -> bool:
    return work.name == name or work.name.startswith(f"{name}_")


def _is_attention(work: Work) -> bool:
    name = work.name.lower()
    is_named = any(word in name for word in ("flash", "fwd_kernel", "attention", "decode", "prefill", "fmha"))
    return work.name.startswith(VERIFY_ATTENTION) or (is_named and "rmsnorm" not in name)


def _busy(works: Sequence[Work]) -> float:
    """Return the time in which anything runs."""
    total, until = 0.0, float("-inf")
    for work in works:
        total += max(0.0, work.end - max(until, work.start))
        until = max(until, work.end)
    return total


def _longest(rounds: Sequence[Sequence[Work]], count: int = 25) -> list[dict[str, Any]]:
    totals: dict[str, list[float]] = defaultdict(list)
    for each in rounds:
        for work in each:
            totals[work.name[:120]].append(work.length)
    ranked = sorted(totals.items(), key=lambda item: -sum(item[1]))[:count]
    return [
        {"kernel": name, "us_a_round": round(sum(all_) / len(rounds), 2), "a_round": round(len(all_) / len(rounds), 2)}
        for name, all_ in ranked
    ]
