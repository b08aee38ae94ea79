"""From rows to cells: accept lengths, times, speeds and verdicts of every arm, in the plan's order.

Accept length is pooled: emitted tokens / rounds. A cell whose gate failed, or is undecided, keeps its accept length
and gets no speed. Knows nothing of servers and of output.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jetspec_cli.bench.plan import OTHER, Arm, BenchSpec
from jetspec_cli.bench.rows import Row, RowLog
from jetspec_cli.bench.speed import of_rows, paired
from jetspec_cli.gating import verdict as verdicts
from jetspec_cli.prompts import Prompt

NOT_GATED = "not gated"
ORACLE = "oracle"
WITHHELD = (verdicts.FAILED, verdicts.INCONCLUSIVE)
SPEED_KEYS = ("ttft_s", "tpot_s", "e2e_s", "round_s", "tok_s", "tok_s_by_class", "tok_s_by_repeat")

Cell = dict[str, Any]


def rows_of(spec: BenchSpec, prompts: Sequence[Prompt], log: RowLog) -> list[Row]:
    """Return the rows that are there, in the plan's order, however the run was cut in pieces."""
    found = (
        log.get(block.pairing.label, block.repeat, prompt.prompt_id, arm.label)
        for block in spec.blocks(prompts)
        for arm in block.pairing.arms
        for prompt in block.prompts
    )
    return [row for row in found if row is not None]


def summarize(spec: BenchSpec, rows: Sequence[Row]) -> list[Cell]:
    """Return one cell for every arm with rows."""
    cells = []
    for arm in spec.arms:
        own = [row for row in rows if row["arm"] == arm.label]
        if own:
            cells.append(_cell(spec, arm, own, rows))
    by_label = {cell["label"]: cell for cell in cells}
    for cell in cells:
        derive_against_plain(cell, by_label.get("plain"))
    return cells


def _cell(spec: BenchSpec, arm: Arm, own: Sequence[Row], rows: Sequence[Row]) -> Cell:
    good = [row for row in own if row["is_ok"]]
    gate = gate_outcome(spec, own)
    speed = of_rows(good) if gate["outcome"] not in WITHHELD else dict.fromkeys(SPEED_KEYS)
    cell = {
        "label": arm.label,
        "role": arm.label if arm.is_baseline else "other" if arm.is_other else "tree",
        "tree": None if arm.tree is None else arm.tree.to_mapping(),
        "num_requests": len(own),
        "num_failed": len(own) - len(good),
        "gate": gate,
        **accept(good),
        **speed,
        "against": {},
        "by_prompt": _by_prompt(good),
    }
    for baseline in ("linear", "plain", OTHER):
        pairings = {p.label for p in spec.pairings if baseline in {a.label for a in p.arms} and arm in p.arms}
        if arm.label == baseline or not pairings or gate["outcome"] in WITHHELD:
            continue
        together = [row for row in rows if row["pairing"] in pairings and row["is_ok"]]
        found = paired(together, arm.label, baseline, is_one_by_one=spec.load.is_one_by_one)
        if found is not None:
            cell["against"][baseline] = found
    return cell


def gate_outcome(spec: BenchSpec, own: Iterable[Row]) -> dict[str, Any]:
    """Return a cell's gate: outcome, verdict counts, and what was found."""
    judged = [row for row in own if row.get("gate")]
    counts = Counter(row["gate"]["verdict"] for row in judged)
    findings = [
        {"prompt_id": row["prompt_id"], "repeat": row["repeat"], **row["gate"]}
        for row in judged
        if row["gate"]["verdict"] != "identical"
    ]
    if judged:
        outcome = verdicts.outcome(counts, {}, can_near_tie=spec.allow_near_ties)
    else:
        is_oracle = any(p.oracle is not None and p.oracle.label == row["arm"] for row in own for p in spec.pairings)
        outcome = ORACLE if is_oracle else NOT_GATED
    return {"outcome": outcome, "verdicts": dict(sorted(counts.items())), "findings": findings}


def accept(rows: Iterable[Row]) -> dict[str, Any]:
    """Return accept length, accept rate and histogram of rows, pooled and by class; None without counters."""
    counted = [row for row in rows if row.get("num_rounds")]
    by_class: dict[str, list[Row]] = {}
    for row in counted:
        by_class.setdefault(row["class"], []).append(row)
    classes = sorted(by_class.items())
    proposed = _total(counted, "num_proposed_drafts")
    return {
        "accept_length": _accept_length(counted),
        "accept_length_by_class": {name: _accept_length(group) for name, group in classes},
        "accept_rate": _total(counted, "num_correct_drafts") / proposed if proposed else None,
        "accept_histogram": _histogram(counted),
        "accept_histogram_by_class": {name: _histogram(group) for name, group in classes},
    }


def _accept_length(rows: Sequence[Row]) -> float | None:
    rounds = _total(rows, "num_rounds")
    return _total(rows, "num_emitted_tokens") / rounds if rounds else None


def _histogram(rows: Iterable[Row]) -> list[int]:
    total: list[int] = []
    for row in rows:
        counts = row.get("accept_histogram") or []
        total += [0] * (len(counts) - len(total))
        for size, count in enumerate(counts):
            total[size] += count
    while total and not total[-1]:
        total.pop()
    return total


def _total(rows: Iterable[Row], key: str) -> int:
    return sum(row.get(key) or 0 for row in rows)


def _by_prompt(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Return emitted tokens, rounds and seconds of every prompt, over all passes: what a later run is paired with."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        one = sums.setdefault(row["prompt_id"], [0, 0, 0.0])
        one[0] += row["num_emitted_tokens"] or 0
        one[1] += row["num_rounds"] or 0
        one[2] += row["e2e_s"]
    return sums


def derive_against_plain(cell: Cell, plain: Cell | None) -> None:
    """Add the speed against plain decoding to a cell that was interleaved with linear only."""
    link = plain["against"].get("linear") if plain is not None else None
    own = cell["against"].get("linear")
    if "plain" in cell["against"] or cell["role"] == "plain" or link is None or not link["speedup"]:
        return
    if cell["role"] == "linear":
        value = 1 / link["speedup"]["value"]
    elif own is not None and own["speedup"]:
        value = own["speedup"]["value"] / link["speedup"]["value"]
    else:
        return
    speedup = {"value": value, "low": None, "high": None, "num_units": link["speedup"]["num_units"]}
    cell["against"]["plain"] = {"speedup": speedup, "is_derived": True}
