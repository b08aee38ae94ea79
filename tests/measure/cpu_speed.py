"""Speed on this machine, one process, interleaved: python -m tests.measure.cpu_speed.

transformers' generate, plain decoding, the linear path and trees decode the same prompts to the same number of tokens,
turn by turn, so that drift of the machine hits all alike. tok/s is emitted tokens over wall time, prefill included;
the step cost ratio is the median tree round over the median linear round, prefill excluded. Run it on a quiet machine.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from tests.measure.common import CLASSES, answer, cache_dir, encode, read_prompts, stamp, start, write
from transformers import AutoModelForCausalLM

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.records import SamplingParams

TREES = {
    "plain": PLAIN,
    "linear": LINEAR,
    "tree W8 B8": TreeConfig(budget=8),
    "tree W8 B12": TreeConfig(budget=12),
    "tree W8 B16": TreeConfig(budget=16),
    "tree W8 B32": TreeConfig(budget=32),
    "tree W8 B64": TreeConfig(budget=64),
}
REFERENCE = "transformers"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--per-class", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engine = start(max_running=1, num_threads=options.threads, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(cache_dir() / "smollm2-135m", dtype=torch.bfloat16).eval()
    prompts = [encode(engine, prompt) for name in CLASSES for prompt in read_prompts(name)[: options.per_class]]
    sampling = SamplingParams(max_new_tokens=options.tokens, ignore_eos=True)
    rows: list[dict[str, Any]] = []
    for repeat in range(options.repeats + 1):
        seconds: dict[str, float] = dict.fromkeys((REFERENCE, *TREES), 0.0)
        rounds: dict[str, list[float]] = {name: [] for name in TREES}
        tokens: dict[str, int] = dict.fromkeys(TREES, 0)
        num_rounds: dict[str, int] = dict.fromkeys(TREES, 0)
        phases: dict[str, dict[str, float]] = {name: {} for name in TREES}
        # The first pass warms up, on one prompt, and is not kept.
        for ids in prompts[: 1 if repeat == 0 else None]:
            seconds[REFERENCE] += generate(model, ids, options.tokens)
            for name, tree in TREES.items():
                found = answer(engine, tree, ids, sampling)
                seconds[name] += found.wall_s
                rounds[name] += found.stats.round_s
                tokens[name] += found.stats.num_emitted_tokens
                num_rounds[name] += found.stats.num_rounds
                for phase, value in found.stats.phase_s.items():
                    phases[name][phase] = phases[name].get(phase, 0.0) + value
        if repeat:
            rows.append(summary(seconds, rounds, tokens, num_rounds, phases, len(prompts) * options.tokens))
            print(repeat, {name: round(cell["tok_s"], 1) for name, cell in rows[-1].items()}, flush=True)
    document = stamp(engine) | {"result": report(rows, len(prompts), options.tokens)}
    finish(engine, options.out, document)


def generate(model: Any, ids: tuple[int, ...], count: int) -> float:
    """Return the seconds transformers takes for exactly ``count`` greedy tokens."""
    inputs = torch.tensor([ids])
    begin = time.perf_counter()
    with torch.inference_mode():
        made = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )
    assert made.shape[1] == len(ids) + count
    return time.perf_counter() - begin


def summary(
    seconds: dict[str, float],
    rounds: dict[str, list[float]],
    tokens: dict[str, int],
    num_rounds: dict[str, int],
    phases: dict[str, dict[str, float]],
    count: int,
) -> dict[str, Any]:
    """Return one repeat's figures by configuration."""
    found: dict[str, Any] = {REFERENCE: {"tok_s": count / seconds[REFERENCE]}}
    for name in TREES:
        found[name] = {
            "tok_s": tokens[name] / seconds[name],
            "round_ms": statistics.median(rounds[name]) * 1e3,
            "accept_length": tokens[name] / num_rounds[name],
            "phase_ms_a_round": {k: v * 1e3 / len(rounds[name]) for k, v in phases[name].items() if k != "prefill"},
            "prefill_ms_a_prompt": phases[name]["prefill"] * 1e3 * 128 / tokens[name],
        }
    return found


def report(rows: list[dict[str, Any]], num_prompts: int, num_tokens: int) -> dict[str, Any]:
    """Return medians over the repeats, and ratios taken within each repeat."""

    def spread(values: list[float]) -> dict[str, float]:
        return {"median": statistics.median(values), "min": min(values), "max": max(values)}

    def ratio(name: str, base: str, key: str = "tok_s") -> dict[str, float]:
        return spread([row[name][key] / row[base][key] for row in rows])

    trees = [name for name in TREES if name.startswith("tree")]
    best = max(trees, key=lambda name: statistics.median([row[name]["tok_s"] for row in rows]))
    return {
        "num_repeats": len(rows),
        "num_prompts": num_prompts,
        "tokens_per_prompt": num_tokens,
        "tok_s": {name: spread([row[name]["tok_s"] for row in rows]) for name in rows[0]},
        "round_ms": {name: spread([row[name]["round_ms"] for row in rows]) for name in TREES},
        "accept_length": {name: rows[0][name]["accept_length"] for name in TREES},
        "best_tree": best,
        "ratios": {
            "plain / transformers": ratio("plain", REFERENCE),
            "best tree / plain": ratio(best, "plain"),
            "best tree / linear": ratio(best, "linear"),
            "linear / plain": ratio("linear", "plain"),
        },
        "step_cost_ratio": {name: ratio(name, "linear", "round_ms") for name in trees},
        "accept_ratio": {name: ratio(name, "linear", "accept_length") for name in trees},
        "repeats": rows,
    }


def finish(engine: EmbeddedEngine, path: Path, document: dict[str, Any]) -> None:
    """Close, write, and print what matters."""
    engine.close()
    write(path, document)
    for key in ("tok_s", "round_ms", "accept_length", "ratios", "step_cost_ratio"):
        print(key, document["result"][key])


if __name__ == "__main__":
    main()
