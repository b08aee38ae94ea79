"""How long a measurement would take: a warm-up prompt is decoded on every arm, nothing is measured or written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jetspec_cli.bench.plan import BenchSpec, Pairing
from jetspec_cli.bench.replay.run import is_replayed
from jetspec_cli.bench.runner import Runner
from jetspec_cli.bench.server import Link, fit, open_bench
from jetspec_cli.prompts import Prompt


def likely_live(spec: BenchSpec) -> tuple[Pairing, ...]:
    """Return the baselines and a cell of each budget: about what a replayed sweep measures of its grid."""
    baselines = [pairing for pairing in spec.pairings if all(arm.is_baseline for arm in pairing.arms)]
    budgets: dict[int | None, Pairing] = {}
    for pairing in spec.pairings:
        trees = [arm.tree for arm in pairing.arms if not arm.is_baseline and arm.tree is not None]
        for tree in trees:
            budgets.setdefault(tree.budget, pairing)
    return (*baselines, *budgets.values())


def estimate(
    spec: BenchSpec, prompts: Sequence[Prompt], link: Link, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return the number of requests and tokens and the seconds they would take at most, by cell and in all.

    Every prompt is taken to use its whole cap, so short answers make it faster; concurrency is counted in.

    Raises:
        JetspecError: the server cannot run the plan: a dry run checks everything but the measuring.
    """
    with open_bench(spec, link, on_progress) as bench:
        spec, notes = fit(spec, bench)
        runner = Runner(spec, prompts, bench)
        tokens = sum(spec.load.cap(prompt) for prompt in prompts) * spec.load.repeat
        cells: list[dict[str, Any]] = []
        if is_replayed(spec, bench.client):
            spec = replace(spec, pairings=likely_live(spec))
            recorded = sum(spec.load.cap(prompt) for prompt in prompts)
            # A recording decodes plainly and drafts at every token.
            max_s = recorded * sum(runner.warm_up(spec.pairings[0]).values())
            cells.append({"label": "recording", "num_requests": len(prompts), "max_tokens": recorded, "max_s": max_s})
        for pairing in spec.pairings:
            per_token = runner.warm_up(pairing)
            cells.append(
                {
                    "label": pairing.label,
                    "num_requests": len(prompts) * spec.load.repeat * len(pairing.arms),
                    "max_tokens": tokens * len(pairing.arms),
                    "max_s": tokens * sum(per_token.values()) / spec.load.concurrency,
                }
            )
    return {
        "kind": "estimate",
        "configuration": spec.to_mapping(),
        "cells": cells,
        "num_requests": sum(cell["num_requests"] for cell in cells),
        "max_tokens": sum(cell["max_tokens"] for cell in cells),
        "max_s": sum(cell["max_s"] for cell in cells),
        "notes": [*notes, *runner.notes],
    }
