"""Decodes 100,000 tokens and more through trees over hybrid targets, and compares every one with two oracles.

    python tests/measure/hybrid_long.py --out results/cpu/hybrid-long.json --cache-dir ~/.cache/jetspec

What ``gates/hybrid.toml`` checks (its targets, dtypes, trees and drafter), on many more texts and in this process:
prompts of random ids, four requests at once, each token compared with greedy and linear decoding of the same prompt
alone, and each log-probability bit by bit with greedy decoding's. A run that was stopped goes on where it was: what is
done is in the file. Exit 1 when anything differs.
"""

import argparse
import itertools
import json
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from jetspec_cli import environment  # noqa: E402
from jetspec_engine.config import LINEAR, PLAIN, ServeConfig, TreeConfig  # noqa: E402
from jetspec_engine.embedded.assembly import build_engine  # noqa: E402
from support.engine_runs import Collected, Rig  # noqa: E402

GROUP, MAX_GROUPS = 4, 10_000
MAX_PROMPT, MAX_NEW_TOKENS = 200, 96


def main() -> int:
    options = read_options()
    gate = tomllib.loads((ROOT / "gates" / "hybrid.toml").read_text(encoding="utf-8"))
    cells = [TreeConfig(width=w, budget=b) for w, b in itertools.product(gate["tree"]["width"], gate["tree"]["budget"])]
    settings = list(itertools.product(gate["targets"], gate["dtypes"]))
    document = read_document(options.out, settings)
    for number, (target, dtype) in itertools.product(range(MAX_GROUPS), settings):
        key = f"{target} {dtype} {number}"
        if total(document) >= options.tokens:
            break
        if key not in document["groups"]:
            done = document["groups"][key] = run_group(target, dtype, number, cells, gate, options)
            write(document, options.out)
            print(f"{key}: {done['mismatches']} mismatches, {total(document)} tokens so far", flush=True)
    return finish(document, options.out)


def run_group(
    target: str, dtype: str, number: int, cells: list[TreeConfig], gate: dict[str, Any], options: Any
) -> dict[str, Any]:
    """Decode one group of prompts through both oracles and every cell."""
    config = ServeConfig(
        target=target, drafter=gate["server"]["drafter"], dtype=dtype, device="cpu", max_running=GROUP,
        max_seq_len=gate["server"]["max_seq_len"], cache_dir=str(options.cache_dir), num_threads=1,
    )  # fmt: skip
    began = time.perf_counter()
    engine = build_engine(config, lambda progress: None)
    rig = Rig(engine, engine._target, engine._drafter, engine._pool)  # type: ignore[arg-type]
    try:
        prompts = make_prompts(number, engine._target.vocab_size)
        alone = {name: [decode(rig, [prompt], tree)[0] for prompt in prompts] for name, tree in ORACLES.items()}
        counts = compare(alone["greedy"], alone["linear"])
        rounds = 0
        for cell in cells:
            together = decode(rig, prompts, cell)
            rounds += sum(run.stats.num_rounds for run in together)
            for oracle in alone.values():
                for name, count in compare(oracle, together).items():
                    counts[name] += count
        tokens = sum(len(run.ids) for run in alone["greedy"]) * len(cells)
    finally:
        engine.close()
    return {"tokens": tokens, "rounds": rounds, **counts, "seconds": round(time.perf_counter() - began, 1)}


ORACLES = {"linear": LINEAR, "greedy": PLAIN}


def make_prompts(number: int, vocab_size: int) -> list[tuple[int, ...]]:
    """Return a group of prompts of random lengths and ids, the same for the same number."""
    generator = np.random.default_rng(number)
    lengths = generator.integers(1, MAX_PROMPT + 1, GROUP)
    return [tuple(generator.integers(0, vocab_size, length).tolist()) for length in lengths]


def decode(rig: Rig, prompts: list[tuple[int, ...]], tree: TreeConfig) -> list[Collected]:
    """Decode prompts at once on an empty cache."""
    rig.engine.set_tree(tree)
    rig.engine.flush_cache()
    runs = [rig.submit(prompt, top_k=0, max_new_tokens=MAX_NEW_TOKENS, ignore_eos=True) for prompt in prompts]
    for run in runs:
        assert run.done.wait(600), "a request never ended"
        assert run.finish.kind == "length", run.finish
    return runs


def compare(expected: list[Collected], actual: list[Collected]) -> dict[str, int]:
    """Count texts that differ, and log-probabilities whose bits do."""
    mismatches = sum(a.ids != b.ids for a, b in zip(expected, actual, strict=True))
    pairs = itertools.chain.from_iterable(
        zip(logprobs(a), logprobs(b), strict=True) for a, b in zip(expected, actual, strict=True) if a.ids == b.ids
    )
    return {"mismatches": mismatches, "bits_that_differ": sum(a != b for a, b in pairs)}


def logprobs(run: Collected) -> list[float]:
    return [one.logprob for event in run.events for one in event.logprobs]


def read_document(path: Path, settings: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what an earlier run left, or a new document."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"kind": "hybrid_long", "settings": settings, "environment": environment.stamp(), "groups": {}}


def total(document: dict[str, Any]) -> int:
    return sum(group["tokens"] for group in document["groups"].values())


def finish(document: dict[str, Any], path: Path) -> int:
    """Sum up, write, and return the exit code."""
    groups = document["groups"].values()
    keys = ("tokens", "rounds", "mismatches", "bits_that_differ", "seconds")
    document["summary"] = {key: round(sum(group[key] for group in groups), 1) for key in keys}
    write(document, path)
    print(document["summary"])
    return int(document["summary"]["mismatches"] + document["summary"]["bits_that_differ"] > 0)


def write(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".part")
    making.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    making.replace(path)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, default=environment.cache_dir())
    parser.add_argument("--tokens", type=int, default=100_000, help="stop once so many are compared")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
