"""Speed on this machine, one process, interleaved: python -m tests.measure.cpu_speed.

transformers' generate, plain decoding, the linear path and trees decode the same prompts to the same number of tokens,
turn by turn, so that drift of the machine hits all alike. All run on the engine's thread: OpenMP keeps a pool of
workers for every thread that computes, and a second pool slows both sides (``embedded.own_thread``). tok/s is emitted
tokens over wall time, prefill included; the step cost ratio is the median tree round over the median linear round,
prefill excluded. Run it on a quiet machine.

Every repeat is written down as it ends, and a later call with the same arguments at the same commit goes on from there.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from tests.measure.common import CLASSES, Answer, answer, cache_dir, encode, read_prompts, stamp, start, write
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
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no repeat after this many")
    options = parser.parse_args()
    begin = time.perf_counter()
    engine = start(max_running=1, num_threads=options.threads, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(cache_dir() / "smollm2-135m", dtype=torch.bfloat16).eval()
    prompts = [encode(engine, prompt) for name in CLASSES for prompt in read_prompts(name)[: options.per_class]]
    run_repeat(engine, model, prompts[:1], options.tokens)  # warms up, and is not kept
    partial = options.out.with_suffix(".partial.json")
    header = {key: value for key, value in stamp(engine).items() if key not in ("date", "command")}
    header["settings"] = [options.per_class, options.tokens, options.threads]
    rows = read_rows(partial, header)
    while len(rows) < options.repeats and time.perf_counter() - begin < options.seconds:
        rows.append(run_repeat(engine, model, prompts, options.tokens))
        write(partial, {"header": header, "rows": rows})
        print(len(rows), {name: round(cell["tok_s"], 1) for name, cell in rows[-1].items()}, flush=True)
    if len(rows) == options.repeats:
        finish(options.out, stamp(engine) | {"result": report(rows, len(prompts), options.tokens)})
        partial.unlink()
    engine.close()


def read_rows(path: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the repeats that earlier calls wrote down; refuses those of another commit, machine or setting."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["header"] != json.loads(json.dumps(header)):
        raise SystemExit(f"{path}: repeats of another commit, machine or setting; remove it first")
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def run_repeat(engine: EmbeddedEngine, model: Any, prompts: list[tuple[int, ...]], count: int) -> dict[str, Any]:
    """Decode every prompt in every way, turn by turn, and return the figures by configuration."""
    seconds = 0.0
    answers: dict[str, list[Answer]] = {name: [] for name in TREES}
    sampling = SamplingParams(max_new_tokens=count, ignore_eos=True)
    for ids in prompts:
        seconds += engine._jobs.ask(lambda ids=ids: generate(model, ids, count))  # type: ignore[misc]
        for name, tree in TREES.items():
            answers[name].append(answer(engine, tree, ids, sampling))
    figures = {name: summary(found) for name, found in answers.items()}
    return {REFERENCE: {"tok_s": count * len(prompts) / seconds}} | figures


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


def summary(answers: list[Answer]) -> dict[str, Any]:
    """Return one configuration's figures in one repeat."""
    rounds = [seconds for found in answers for seconds in found.stats.round_s]
    tokens = sum(found.stats.num_emitted_tokens for found in answers)
    phases = {name: sum(found.stats.phase_s[name] for found in answers) * 1e3 for name in answers[0].stats.phase_s}
    return {
        "tok_s": tokens / sum(found.wall_s for found in answers),
        "round_ms": statistics.median(rounds) * 1e3,
        "accept_length": tokens / sum(found.stats.num_rounds for found in answers),
        "prefill_ms_a_prompt": phases.pop("prefill") / len(answers),
        "phase_ms_a_round": {name: value / len(rounds) for name, value in phases.items()},
    }


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


def finish(path: Path, document: dict[str, Any]) -> None:
    """Write, and print what matters."""
    write(path, document)
    for key in ("tok_s", "round_ms", "accept_length", "ratios", "step_cost_ratio"):
        print(key, document["result"][key])


if __name__ == "__main__":
    main()
