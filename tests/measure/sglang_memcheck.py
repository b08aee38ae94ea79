"""One short run of a tiny hybrid target on SGLang under compute-sanitizer: python -m tests.measure.sglang_memcheck.

The real scheduler in one process, CUDA graphs, exact mode, three requests on a graph of four. The same run without the
tool goes first: it compiles the kernels and says which tokens to expect. Knows the tool's output, nothing of kernels.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tests.measure.common import ROOT, write
from tests.measure.sglang_arms import find_environment
from tests.support.sglang_hybrid import make_hybrid_pair

DRIVER = ROOT / "tests" / "sglang" / "drive_scheduler.py"
TOOL = "compute-sanitizer --tool memcheck --target-processes all --error-exitcode 77 --print-limit 20"
CHANGES = {
    "hidden_size": 128, "head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip
MARK = "========="


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tool", default=TOOL, help="the command in front of the run")
    parser.add_argument("--new", type=int, default=10, help="tokens a request")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for the run under the tool")
    parser.add_argument("--cpu", action="store_true", help="tries this script, not a GPU")
    parser.add_argument("--commit", default=None)
    return parser.parse_args()


def job_of(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the pair and return what the driver is to run: a chain, then a tree of sixteen nodes."""
    dtype = torch.float32 if options.cpu else torch.bfloat16
    target, head = make_hybrid_pair(folder, "qwen3-next", dtype=dtype, **({} if options.cpu else CHANGES))
    words = [
        f"--model-path={target}", f"--speculative-draft-model-path={head}", "--speculative-algorithm=JETSPEC",
        f"--dtype={str(dtype).removeprefix('torch.')}", "--skip-tokenizer-init", "--max-running-requests=4",
        "--max-total-tokens=2048", "--context-length=256", "--random-seed=0", "--sampling-backend=pytorch",
        "--disable-radix-cache", "--log-level=error", "--speculative-dflash-tree-width=8",
        "--speculative-dflash-tree-budget=16",
    ]  # fmt: skip
    if options.cpu:
        words += ["--device=cpu", "--attention-backend=torch_native", "--disable-cuda-graph"]
    else:
        words += [
            "--attention-backend=triton", "--enable-deterministic-inference", "--mem-fraction-static=0.1",
            "--cuda-graph-bs", "1", "4", "--cuda-graph-backend-prefill=disabled",
        ]  # fmt: skip
    rng = random.Random(1)
    prompts = [[rng.randrange(4, 260) for _ in range(size)] for size in (9, 21, 14)]
    tree = {"jetspec_width": 8, "jetspec_budget": 16, "jetspec_rule": 0, "jetspec_beta": 1.0, "jetspec_g0": 1.0,
            "jetspec_keep_spine": 0}  # fmt: skip
    chain = {**tree, "jetspec_width": 1, "jetspec_budget": 0}
    steps = [{"prompts": prompts, "max_new_tokens": options.new, "tree": each} for each in (chain, tree)]
    return {"words": words, "steps": steps}


def run(job: dict[str, Any], folder: Path, prefix: list[str], limit: float) -> dict[str, Any]:
    """Run the job; returns exit code (None at the limit), seconds, tokens by step, graph rounds, the tool's lines."""
    asked, answered = folder / "jobs.json", folder / "out.json"
    asked.write_text(json.dumps({"run": job}), encoding="utf-8")
    answered.unlink(missing_ok=True)
    environment = {**os.environ, "SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM": "0"}
    begin = time.monotonic()
    command = [*prefix, sys.executable, str(DRIVER), str(asked), str(answered), "run"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
        code, said = ran.returncode, ran.stdout + ran.stderr
    except subprocess.TimeoutExpired as error:
        told = error.stdout or b""
        code, said = None, told.decode(errors="replace") if isinstance(told, bytes) else told
    found: dict[str, Any] = {
        "exit_code": code, "seconds": round(time.monotonic() - begin, 1),
        "tool": [line for line in said.splitlines() if line.startswith(MARK)][:60],
    }  # fmt: skip
    result = json.loads(answered.read_text(encoding="utf-8"))["run"] if answered.is_file() else {"error": said[-1500:]}
    if "steps" not in result:
        return found | {"error": result["error"][-1500:]}
    requests = [request for step in result["steps"] for request in step["requests"].values()]
    return found | {
        "ids": [request["ids"] for request in requests],
        "graph_rounds": sum(request["spec_graph_rounds"] for request in requests),
        "eager_rounds": sum(request["spec_eager_rounds"] for request in requests),
    }  # fmt: skip


def main() -> None:
    """Run twice, compare and write; exits 1 on an error the tool found, other tokens, or no result."""
    options = parse()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        job = job_of(folder / "pair", options)
        bare = run(job, folder, [], options.limit)
        checked = run(job, folder, options.tool.split(), options.limit)
    is_same = "ids" in bare and bare["ids"] == checked.get("ids")
    document = {
        "schema_version": 1, "what": "a tiny Qwen3-Next on SGLang under compute-sanitizer", "tool": options.tool,
        "commit": options.commit, "date": time.strftime("%Y-%m-%d"), "environment": find_environment(),
        "bare": bare, "checked": checked, "is_same": is_same,
    }  # fmt: skip
    write(options.out, document)
    print(json.dumps({"exit_code": checked["exit_code"], "is_same": is_same, "tool": checked["tool"][-3:]}, indent=1))
    sys.exit(0 if is_same and checked["exit_code"] == 0 else 1)


if __name__ == "__main__":
    main()
