"""SGLang's real scheduler driven on a CPU, a process a set of servers: what the tests of whole rounds share.

Knows the driver and the words of a command line; nothing of what is compared.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from support.sglang_configs import TARGET

HERE = Path(__file__).parents[1] / "sglang"
VOCAB = TARGET["vocab_size"]
NEW = 60  # more than the 50 tokens after which SGLang sends a first piece
CONTEXT = 128
SLOTS = 4096


def drive(folder, jobs, **environment):
    """Run the jobs in one process and return their results, failing with the first error."""
    asked, answered = folder / "jobs.json", folder / "out.json"
    asked.write_text(json.dumps(jobs))
    paths = [str(HERE / "cpu_rounds"), *(path for path in sys.path if path)]
    ran = subprocess.run(
        [sys.executable, HERE / "drive_scheduler.py", asked, answered], capture_output=True, text=True, check=False,
        timeout=900, env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths),
                          "SGLANG_USE_CPU_ENGINE": "1"},
    )  # fmt: skip
    assert answered.exists(), ran.stderr[-3000:]
    results = json.loads(answered.read_text())
    for name, result in results.items():
        assert "steps" in result, f"{name}: {result.get('error', ran.stderr)[-3000:]}"
    assert results.keys() == jobs.keys()
    return {name: result["steps"] for name, result in results.items()}


def words(pair, algorithm, *more):
    target, head = pair
    common = [
        f"--model-path={target}", "--device=cpu", "--attention-backend=torch_native", "--dtype=float32",
        "--skip-tokenizer-init", "--max-running-requests=4", f"--max-total-tokens={SLOTS}",
        f"--context-length={CONTEXT}", "--random-seed=0", "--sampling-backend=pytorch", "--disable-cuda-graph",
        "--log-level=error",
    ]  # fmt: skip
    if algorithm is not None:
        common += [f"--speculative-algorithm={algorithm}", f"--speculative-draft-model-path={head}"]
    if algorithm == "JETSPEC":
        common += ["--speculative-dflash-tree-width=8", "--speculative-dflash-tree-budget=64",
                   "--speculative-dflash-tree-budgets=4,16,64"]  # fmt: skip
    return [*common, *more]


def tree(width, budget):
    return {"jetspec_width": width, "jetspec_budget": budget, "jetspec_rule": 0, "jetspec_beta": 1.0,
            "jetspec_g0": 1.0, "jetspec_keep_spine": 0}  # fmt: skip


def prompts():
    rng = random.Random(1)
    return [[rng.randrange(10, VOCAB - 1) for _ in range(length)] for length in (6, 3, 40, 17)]


PROMPTS = prompts()


def step(texts, cap=NEW, **more):
    return {"prompts": texts, "max_new_tokens": cap, **more}


def ids(result):
    return {number: request["ids"] for number, request in result["requests"].items()}


def script_of(folder, kind, sequence):
    """Write drafts by position: the right token first, second at every third place, or never."""
    rank_of = {"full": lambda _: 0, "deep": lambda at: 1 if at % 3 == 0 else 0, "zero": lambda _: None}[kind]
    document = {"ids": [], "logprobs": []}
    for at, token in enumerate(sequence):
        rank = rank_of(at)
        row = [(token + other) % VOCAB for other in (1, 2, 3, 4)]
        if rank is not None:
            row = row[:3]
            row.insert(rank, token)
        document["ids"].append(row)
        document["logprobs"].append([-0.01, -5, -6, -7] if rank == 0 else [-0.69, -0.70, -5, -6])
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(document))
    return str(path)
