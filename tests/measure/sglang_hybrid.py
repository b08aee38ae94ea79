"""Hybrid and expert targets on SGLang, tiny and random, gated: python -m tests.measure.sglang_hybrid --out hybrid.json.

A server a family, all on one GPU, exact mode and CUDA graphs unless told otherwise. Ten prompts whose texts take
disjoint positions, so that one script of drafts by position serves all: deep paths through second and last candidates,
everything right, nothing right, two likely siblings a depth. Every tree is held against the linear path of its own
server by ``jetspec gate``; texts in company against those alone. A family that fails is reported, the others go on.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tests.measure.common import ROOT, write
from tests.measure.needs import exit_without
from tests.measure.sglang_arms import find_environment
from tests.measure.sglang_server import LINEAR, SGLANG_SERVER, Server, ServerFailedError, start_all
from tests.support.sglang_hybrid import make_hybrid_pair

from jetspec_engine.config import TreeConfig

FAMILIES = ("qwen3-next", "qwen3.5-moe", "qwen3.5", "qwen3-moe")
SIZES = {
    "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512,
}  # fmt: skip
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "full_attention_interval": 4, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}  # fmt: skip
# As wide as Qwen3.6-35B-A3B's heads.
WIDE = {
    "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 1, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
CHANGES = {
    "qwen3-moe": {**SIZES, **EXPERTS},
    "qwen3-next": {**SIZES, **EXPERTS, **DELTA, "shared_expert_intermediate_size": 64},
    "qwen3.5": {**SIZES, **DELTA},
    "qwen3.5-moe": {**SIZES, **EXPERTS, **DELTA, **WIDE, "shared_expert_intermediate_size": 64},
}
WIDTHS, BUDGETS = (2, 4, 8), (8, 16, 64)
VOCAB, STEP = 260, 56
SHAPES = ("deep", "full", "pairs", "zero", "last")
# Of a shape: the right draft's rank at an even and at an odd token, and the candidates' log-probabilities.
RANKS = {"deep": (1, 0), "full": (0, 0), "pairs": (0, 1), "zero": (None, None), "last": (3, 0)}
LOGPROBS = {
    "deep": (-0.69, -0.70, -5.0, -6.0), "full": (-0.01, -5.0, -6.0, -7.0), "pairs": (-0.69, -0.70, -6.0, -7.0),
    "zero": (-0.3, -2.0, -3.0, -4.0), "last": (-1.38, -1.39, -1.39, -1.40),
}  # fmt: skip


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the result document; the gates' own lie beside it")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--new", type=int, default=40, help="tokens a prompt, at most 48")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--production", action="store_true", help="not exact mode")
    parser.add_argument("--cpu", action="store_true", help="float32, small, no graphs: tries this script, not a GPU")
    parser.add_argument("--start-limit", type=float, default=200.0)
    parser.add_argument("--gate-limit", type=float, default=240.0, help="seconds for a family's gate")
    # Below the ports that systems give to outgoing connections, one of which a server was once to have.
    parser.add_argument("--port", type=int, default=30100)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--launch", default=SGLANG_SERVER, help="the server's command")
    return parser.parse_args()


def make_server(family: str, number: int, options: argparse.Namespace, work: Path) -> Server:
    """Write a family's pair and describe its server."""
    dtype = torch.float32 if options.cpu else torch.bfloat16
    target, head = make_hybrid_pair(work / family, family, dtype=dtype, **({} if options.cpu else CHANGES[family]))
    (work / f"{family}.json").write_text("{}", encoding="utf-8")
    words = [
        f"--model-path={target}", f"--speculative-draft-model-path={head}", "--speculative-algorithm=JETSPEC",
        f"--dtype={str(dtype).removeprefix('torch.')}", "--disable-radix-cache", "--max-running-requests=4",
        "--max-total-tokens=8192", "--context-length=1024", "--random-seed=0", "--log-level=info",
        f"--speculative-dflash-tree-width={largest_of(options.widths)}",
        f"--speculative-dflash-tree-budget={largest_of(options.budgets)}",
        f"--speculative-dflash-tree-budgets={options.budgets}",
        f"--speculative-dflash-draft-script={work / family}.json", f"--nccl-port={options.port + 1000 + number}",
    ]  # fmt: skip
    environment = {}
    if options.cpu:
        words += ["--device=cpu", "--attention-backend=torch_native", "--disable-cuda-graph"]
    else:
        words += [
            "--attention-backend=triton", "--mem-fraction-static=0.5", "--cuda-graph-bs-decode", "1", "4",
            "--cuda-graph-backend-prefill=disabled",
        ]  # fmt: skip
    if not options.production and not options.cpu:
        words.append("--enable-deterministic-inference")
        environment["SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM"] = "0"  # spares tuning at start
    return Server(
        name=family, words=words, port=options.port + number, folder=options.out.parent, environment=environment,
        launch=options.launch.split(),
    )  # fmt: skip


def largest_of(numbers: str) -> int:
    """Return the largest of a list such as 2,4,8."""
    return max(map(int, numbers.split(",")))


def make_prompts(count: int) -> list[list[int]]:
    """Return prompts whose texts of at most 48 tokens take disjoint positions."""
    rng = random.Random(3)
    return [[rng.randrange(4, VOCAB) for _ in range(8 + STEP * number)] for number in range(count)]


def script_of(prompts: list[list[int]], texts: list[list[int]]) -> dict[str, Any]:
    """Return drafts by position for the prompts' texts, a shape after another."""
    size = len(prompts[-1]) + STEP
    ids: list[list[int]] = [[] for _ in range(size)]
    logprobs: list[list[float]] = [[] for _ in range(size)]
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        shape = SHAPES[number % len(SHAPES)]
        for place, token in enumerate(text):
            rank = RANKS[shape][place % 2]
            row = [(token + other) % VOCAB for other in range(1, 5)]
            if rank is not None:
                row.insert(rank, token)
            ids[len(prompt) + place], logprobs[len(prompt) + place] = row[:4], list(LOGPROBS[shape])
    return {"ids": ids, "logprobs": logprobs}


def generate(server: Server, ids: list[int], count: int) -> dict[str, Any]:
    """Return the server's answer, token ids and counters in it. Raises ServerFailedError."""
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": count}}
    answer: dict[str, Any] = json.loads(server.ask("/generate", body, timeout_s=300.0))
    return answer


def measure(server: Server, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Try a family; returns its part of the document. Raises ServerFailedError."""
    prompts = make_prompts(options.prompts)
    server.switch(LINEAR)
    texts = [generate(server, prompt, options.new)["output_ids"] for prompt in prompts]
    (work / f"{server.name}.json").write_text(json.dumps(script_of(prompts, texts)), encoding="utf-8")
    server.ask("/set_internal_state", {"server_args": {"jetspec_reload_script": 1}})
    widest = TreeConfig(width=largest_of(options.widths), budget=largest_of(options.budgets))
    alone = []
    server.switch(widest)
    for number, prompt in enumerate(prompts):
        answer = generate(server, prompt, options.new)
        meta = answer["meta_info"]
        alone.append({
            "shape": SHAPES[number % len(SHAPES)], "is_same": answer["output_ids"] == texts[number],
            **{key: meta.get(key) for key in ("spec_accept_histogram", "spec_graph_rounds", "spec_eager_rounds")},
        })  # fmt: skip
    return {"alone": alone, "together": together(server, prompts, texts, widest, options.new),
            "gate": gate(server, prompts, options)}  # fmt: skip


def together(
    server: Server, prompts: list[list[int]], texts: list[list[int]], widest: TreeConfig, count: int
) -> dict[str, str]:
    """Decode three and four requests at once (three are padded to a graph of four); texts that stayed, by tree."""
    found = {}
    for label, tree in (("W1", LINEAR), ("widest", widest)):
        server.switch(tree)
        for size in (3, 4):
            with ThreadPoolExecutor(size) as pool:
                answers = list(pool.map(lambda prompt: generate(server, prompt, count), prompts[:size]))
            same = sum(each["output_ids"] == text for each, text in zip(answers, texts, strict=False))
            found[f"{label} x{size}"] = f"{same}/{len(answers)}"
    return found


def gate(server: Server, prompts: list[list[int]], options: argparse.Namespace) -> dict[str, Any]:
    """Run ``jetspec gate`` against the server; returns its exit code and summary."""
    folder = options.out.parent
    rows = [{"id": f"p{number}", "input_ids": prompt} for number, prompt in enumerate(prompts)]
    asked, told = folder / "prompts.jsonl", folder / f"gate-{server.name}.json"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = [
        sys.executable, "-m", "jetspec_cli", "gate", "--url", f"http://127.0.0.1:{server.port}",
        "--prompts", str(asked), "--tree-width", options.widths, "--budget", options.budgets,
        "--max-new-tokens", str(options.new), "--out", str(told),
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.gate_limit, check=False)
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "error": f"not done after {options.gate_limit:.0f} s"}
    if not told.is_file():
        return {"exit_code": ran.returncode, "error": ran.stderr[-500:]}
    return {"exit_code": ran.returncode, "summary": json.loads(told.read_text(encoding="utf-8"))["summary"]}


def main() -> None:
    """Start the servers, try every family that came up, write and say what came of it."""
    options = parse()
    if options.launch == SGLANG_SERVER:
        exit_without(sglang=True, gpu=not options.cpu)
    options.out = options.out.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    families: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        servers = [make_server(name, place, options, work) for place, name in enumerate(options.families.split(","))]

        def attempt(server: Server) -> dict[str, Any]:
            if server.error is not None:
                return {"error": server.error}
            try:
                return measure(server, options, work)
            except ServerFailedError as error:
                return {"error": str(error)}

        try:
            start_all(servers, options.start_limit)
            with ThreadPoolExecutor(len(servers)) as pool:
                families = dict(zip((server.name for server in servers), pool.map(attempt, servers), strict=True))
        finally:
            for server in servers:
                server.stop()
    mode = "float32 on a CPU" if options.cpu else "production" if options.production else "exact"
    document = {
        "schema_version": 1, "what": "tiny random hybrid and expert targets on SGLang", "mode": mode,
        "commit": options.commit, "date": time.strftime("%Y-%m-%d"), "environment": find_environment(),
        "seconds": round(time.monotonic() - begin, 1), "families": families,
    }  # fmt: skip
    write(options.out, document)
    print(json.dumps(families, indent=1))
    has_passed = all(each.get("gate", {}).get("exit_code") == 0 for each in families.values())
    sys.exit(0 if has_passed else 1)


if __name__ == "__main__":
    main()
