"""One short run of a tiny hybrid target on SGLang under compute-sanitizer: python -m tests.measure.sglang_memcheck.

The real scheduler in one process, exact mode, three requests: first with CUDA graphs, then eager with every tensor an
allocation of its own, where no access beyond one can land in a neighbour. The same run without the tool goes first: it
compiles the kernels and says which tokens to expect. A planted access beyond a tensor must be found, or the tool's
silence says nothing. Knows the tool's output, nothing of kernels.
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
from tests.measure.needs import exit_without
from tests.measure.sglang_arms import find_environment
from tests.support.sglang_hybrid import make_hybrid_pair

DRIVER = ROOT / "tests" / "sglang" / "drive_scheduler.py"
# CUDA's Python bindings ask the driver for functions it lacks, and take the refusal: no fault of the run's.
TOOL = (
    "compute-sanitizer --tool memcheck --target-processes all --report-api-errors no --error-exitcode 77 "
    "--print-limit 20"
)
CHANGES = {
    "hidden_size": 128, "head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip
MARK = "========="
FOUND = 77
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
EAGER = ("--disable-cuda-graph",)
GRAPHS = ("--cuda-graph-bs-decode", "1", "4", "--cuda-graph-backend-prefill=disabled")
PLANTED = """
import torch, triton
from triton import language as tl

@triton.jit
def beyond(out):
    tl.store(out + 8, 1.0)

beyond[(1,)](torch.zeros(8, device="cuda"))
torch.cuda.synchronize()
"""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tool", default=TOOL, help="the command in front of the run")
    parser.add_argument("--new", type=int, default=10, help="tokens a request")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for a run under the tool")
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
        words += ["--device=cpu", "--attention-backend=torch_native"]
    else:
        words += ["--attention-backend=triton", "--enable-deterministic-inference", "--mem-fraction-static=0.1"]
    rng = random.Random(1)
    prompts = [[rng.randrange(4, 260) for _ in range(size)] for size in (9, 21, 14)]
    tree = {"jetspec_width": 8, "jetspec_budget": 16, "jetspec_rule": 0, "jetspec_beta": 1.0, "jetspec_g0": 1.0,
            "jetspec_keep_spine": 0}  # fmt: skip
    chain = {**tree, "jetspec_width": 1, "jetspec_budget": 0}
    steps = [{"prompts": prompts, "max_new_tokens": options.new, "tree": each} for each in (chain, tree)]
    return {"words": words, "steps": steps}


def watch(command: list[str], limit: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run a command; returns exit code (None at the limit), seconds, what the tool said, and the end of the rest."""
    begin = time.monotonic()
    mixed = {**os.environ, "SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM": "0", **environment}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=mixed)
        code, said = ran.returncode, ran.stdout + ran.stderr
    except subprocess.TimeoutExpired as error:
        told = error.stdout or b""
        code, said = None, told.decode(errors="replace") if isinstance(told, bytes) else told
    tool = [line for line in said.splitlines() if line.startswith(MARK) and "Host Frame" not in line]
    return {
        "exit_code": code, "seconds": round(time.monotonic() - begin, 1), "tool": tool[:60] + tool[60:][-1:],
        "end": said[-1500:],
    }  # fmt: skip


def run(
    job: dict[str, Any], folder: Path, prefix: list[str], options: argparse.Namespace, *, is_eager: bool = False
) -> dict[str, Any]:
    """Run the job; returns what ``watch`` does, tokens by request, and rounds in and out of a graph."""
    asked, answered = folder / "jobs.json", folder / "out.json"
    mode = EAGER if is_eager or options.cpu else GRAPHS
    asked.write_text(json.dumps({"run": {**job, "words": [*job["words"], *mode]}}), encoding="utf-8")
    answered.unlink(missing_ok=True)
    command = [*prefix, sys.executable, str(DRIVER), str(asked), str(answered), "run"]
    found = watch(command, options.limit, UNCACHED if is_eager else {})
    end = found.pop("end")
    result = json.loads(answered.read_text(encoding="utf-8"))["run"] if answered.is_file() else {"error": end}
    if "steps" not in result:
        return found | {"error": result["error"][-1500:]}
    requests = [request for step in result["steps"] for request in step["requests"].values()]
    return found | {
        "ids": [request["ids"] for request in requests],
        "graph_rounds": sum(request["spec_graph_rounds"] for request in requests),
        "eager_rounds": sum(request["spec_eager_rounds"] for request in requests),
    }  # fmt: skip


def plant(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write one number beyond a tensor under the tool; it must be found."""
    script = folder / "planted.py"
    script.write_text(PLANTED, encoding="utf-8")
    found = watch([*options.tool.split(), sys.executable, str(script)], options.limit, UNCACHED)
    return found if found["exit_code"] != FOUND else {key: found[key] for key in found if key != "end"}


def main() -> None:
    """Run all, compare and write; exits 1 on an error the tool found or missed, other tokens, or no result."""
    options = parse()
    tool = options.tool.split()
    exit_without(sglang=True, gpu=not options.cpu, programs=tool[:1])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        job = job_of(folder / "pair", options)
        planted = {} if options.cpu else plant(folder, options)
        bare = run(job, folder, [], options)
        runs = {"graphs": run(job, folder, tool, options), "eager": run(job, folder, tool, options, is_eager=True)}
    is_found = options.cpu or planted["exit_code"] == FOUND
    is_same = "ids" in bare and all(bare["ids"] == each.get("ids") for each in runs.values())
    is_clean = is_found and is_same and all(each["exit_code"] == 0 for each in runs.values())
    document = {
        "schema_version": 2, "what": "a tiny Qwen3-Next on SGLang under compute-sanitizer", "tool": options.tool,
        "commit": options.commit, "date": time.strftime("%Y-%m-%d"), "environment": find_environment(),
        "planted": planted, "bare": bare, **runs, "is_planted_found": is_found, "is_same": is_same,
        "is_clean": is_clean,
    }  # fmt: skip
    write(options.out, document)
    told = {name: [each["exit_code"], each["seconds"], each["tool"][-1:]] for name, each in runs.items()}
    print(json.dumps({"is_clean": is_clean, "is_planted_found": is_found, "is_same": is_same, **told}, indent=1))
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
