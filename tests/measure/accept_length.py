"""Held-out accept length by class of text, decoded live by the engine: python -m tests.measure.accept_length.

Pooled accept length is emitted tokens over rounds; class means stand beside it. Every tree must give the linear path's
ids, and does, or the script stops.
"""

import argparse
from pathlib import Path
from typing import Any

from tests.measure.common import CLASSES, answer, encode, read_prompts, stamp, start, write

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.records import SamplingParams

TREES = {
    "linear": LINEAR,
    "best_first B16": TreeConfig(budget=16),
    "best_first B32": TreeConfig(budget=32),
    "best_first B64": TreeConfig(budget=64),
    "best_first B128": TreeConfig(budget=128),
    "top2gap B16": TreeConfig(rule="top2gap", budget=16),
    "top2gap B64": TreeConfig(rule="top2gap", budget=64),
}


def main() -> None:
    """Decode every class set with every tree and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="prompts a class")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--head", default="auto")
    options = parser.parse_args()
    engine = start(max_running=1, num_threads=options.threads, dtype=options.dtype, head=options.head)
    table: dict[str, dict[str, list[int]]] = {name: {} for name in CLASSES}
    for name in CLASSES:
        for prompt in read_prompts(name)[: options.limit]:
            ids, sampling = encode(engine, prompt), SamplingParams(max_new_tokens=prompt["max_new_tokens"])
            expected: tuple[int, ...] | None = None
            for tree_name, tree in TREES.items():
                found = answer(engine, tree, ids, sampling)
                expected = found.ids if expected is None else expected
                if found.ids != expected:
                    raise SystemExit(f"{prompt['id']}: {tree_name} differs from the linear path")
                cell = table[name].setdefault(tree_name, [0, 0])
                cell[0] += found.stats.num_emitted_tokens
                cell[1] += found.stats.num_rounds
        print(name, {key: round(value[0] / value[1], 3) for key, value in table[name].items()}, flush=True)
    document = stamp(engine) | {"result": summarise(table, options.limit)}
    engine.close()
    write(options.out, document)
    print(document["result"]["pooled"])


def summarise(table: dict[str, dict[str, list[int]]], limit: int | None) -> dict[str, Any]:
    """Return accept lengths by class, pooled and as class means."""
    lengths = {name: {tree: n / r for tree, (n, r) in cells.items()} for name, cells in table.items()}
    pooled = {tree: sum(c[tree][0] for c in table.values()) / sum(c[tree][1] for c in table.values()) for tree in TREES}
    means = {tree: sum(row[tree] for row in lengths.values()) / len(lengths) for tree in TREES}
    counts = {name: {tree: {"emitted": n, "rounds": r} for tree, (n, r) in c.items()} for name, c in table.items()}
    return {
        "unit": "emitted tokens per round, bonus included, the prefill's token counted as a round",
        "prompts_per_class": limit or 20,
        "by_class": lengths,
        "pooled": pooled,
        "class_mean": means,
        "counts": counts,
    }


if __name__ == "__main__":
    main()
