"""What a round costs on SGLang at a published shape: python -m tests.measure.sglang_steps --out steps.json.

Dummy weights, batch 1, CUDA graphs, prefill excluded; acceptance is forced (``SGLANG_SIMULATE_ACC_LEN``), as random
weights accept nothing, and the trees' topology is scripted from what the demo pair's head offered
(``sglang_topology.json``). Plain decoding, stock DFLASH on each attention backend and trees of each budget take turns,
all servers on one GPU at once as far as they fit, one working at a time. Every server that does not start and every arm
that fails is reported and left out. With ``--profile``, rounds are also taken apart by phase.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.measure.common import write
from tests.measure.needs import exit_without
from tests.measure.sglang_arms import Arm, exit_if_nothing_ran, find_environment, take_turns, wait_for
from tests.measure.sglang_server import LINEAR, SGLANG_SERVER, Server, ServerFailedError, Timed, start_all
from tests.measure.sglang_shapes import BLOCK, MAX_WIDTH, SHAPES, Shape
from tests.measure.sglang_trace import PHASES, phase_times, read_trace

from jetspec_engine.config import TreeConfig

TOPOLOGY = Path(__file__).with_name("sglang_topology.json")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the result document")
    parser.add_argument("--work", type=Path, default=Path("sglang-steps"), help="folder for logs and traces")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--new", type=int, default=512, help="tokens after a prompt of 512")
    parser.add_argument("--accept", type=int, default=5, help="tokens a round, forced")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--waves", type=int, default=9)
    parser.add_argument("--widths", default=str(MAX_WIDTH), help="of the trees, such as 4,8")
    parser.add_argument("--servers", help="only these of a wave, such as linear-fa3,tree-fa3")
    parser.add_argument("--limit", type=float, default=160.0, help="seconds of measuring, about")
    parser.add_argument("--start-limit", type=float, default=110.0, help="seconds for a wave's servers to start")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="measured, TB/s")
    parser.add_argument("--wait-for", type=Path, help="a file: measure once it is there, FILE.up says servers are")
    parser.add_argument("--wait-limit", type=float, default=300.0, help="seconds to wait for the file")
    parser.add_argument("--port", type=int, default=32100)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--profile", action="store_true", help="also take rounds apart by phase")
    parser.add_argument("--launch", default=SGLANG_SERVER, help="the server's command")
    return parser.parse_args()


def make_server(name: str, options: argparse.Namespace, number: int) -> Server:
    """Describe one server by its name, KIND-BACKEND."""
    kind, backend = name.split("-")
    shape = SHAPES[options.shape]
    folders = {"target": shape.target, "head": shape.head}
    for folder, config in folders.items():
        (options.work / folder).mkdir(parents=True, exist_ok=True)
        (options.work / folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = [
        f"--model-path={options.work / 'target'}", "--load-format=dummy", "--dtype=bfloat16", "--skip-tokenizer-init",
        f"--attention-backend={backend}", "--sampling-backend=pytorch", "--mem-fraction-static=0.95",
        "--max-total-tokens=8192", f"--max-running-requests={shape.requests}", "--context-length=2048",
        "--disable-radix-cache", "--cuda-graph-bs", "1", "--cuda-graph-backend-prefill=disabled", "--random-seed=0",
        "--log-level=info", "--skip-server-warmup", "--sleep-on-idle",
        f"--nccl-port={options.port + 1000 + number}",
        *(word for word in shape.words if kind != "plain" or "speculative" not in word),
    ]  # fmt: skip
    environment = {}
    if kind != "plain":
        algorithm = "JETSPEC" if kind == "tree" else "DFLASH"
        words += [f"--speculative-algorithm={algorithm}", f"--speculative-draft-model-path={options.work / 'head'}"]
        environment = {
            "SGLANG_SIMULATE_ACC_LEN": str(options.accept), "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"
        }  # fmt: skip
    if kind == "tree":
        words += [
            f"--speculative-dflash-tree-width={MAX_WIDTH}", "--speculative-dflash-tree-budget=64",
            f"--speculative-dflash-tree-budgets={','.join(map(str, shape.budgets))}",
            f"--speculative-dflash-draft-script={TOPOLOGY}",
        ]  # fmt: skip
    return Server(
        name=name, words=words, port=options.port + number, folder=options.work, environment=environment,
        launch=options.launch.split(),
    )  # fmt: skip


def arms_of(server: Server, widths: Sequence[int], budgets: Sequence[int]) -> list[Arm]:
    """Return what is measured on a server, trees of each width and budget among it."""
    kind, backend = server.name.split("-")
    if kind != "tree":
        return [Arm(name=server.name, server=server, kind=kind, rows=BLOCK if kind == "linear" else 1)]
    grid = [(width, budget) for width in widths for budget in budgets]
    trees = [("W1", LINEAR, BLOCK), *((f"W{w} B{n}", TreeConfig(width=w, budget=n), n) for w, n in grid)]
    return [
        Arm(name=f"tree-{backend} {label}", server=server, kind="tree", rows=rows, tree=tree)
        for label, tree, rows in trees
    ]


def measure(options: argparse.Namespace, say: Any) -> dict[str, Any]:
    """Run the waves; returns the document. Every server is ended, whatever happens."""
    begin = time.monotonic()
    deadline = begin + options.start_limit + options.wait_limit + options.limit
    shape = SHAPES[options.shape]
    wanted = options.servers.split(",") if options.servers else [name for wave in shape.waves for name in wave]
    widths = [int(word) for word in options.widths.split(",")]
    ids = random.Random(0).choices(range(1000, 100000), k=512)
    servers: dict[str, Server] = {}
    measured: list[tuple[list[Server], list[Arm]]] = []
    profiles: dict[str, Any] = {}

    def keep() -> dict[str, Any]:
        waves = [_wave(fresh, arms, shape, options.bandwidth) for fresh, arms in measured]
        made = _document(options, waves, profiles) | {"seconds": round(time.monotonic() - begin, 1)}
        write(options.out, made)
        return made

    def generate(server: Server, turn: int) -> list[Timed]:
        del turn
        return [server.generate(ids, options.new, ignores_eos=True)]

    try:
        for wave in shape.waves[: options.waves]:
            if measured and (time.monotonic() > deadline - 60 or not measured[0][1]):
                say("no time for the next wave, or nothing to compare with")
                break
            for name in set(servers) - set(shape.anchors):
                servers.pop(name).stop()
            fresh = [
                make_server(name, options, len(measured) * 10 + n) for n, name in enumerate(wave) if name in wanted
            ]
            servers |= {server.name: server for server in fresh}
            start_all(fresh, options.start_limit, say)
            if not measured:
                wait_for(options.wait_for, time.monotonic() + options.wait_limit, say)
                deadline = time.monotonic() + options.limit
            running = [server for server in servers.values() if server.error is None]
            arms = [arm for server in running for arm in arms_of(server, widths, shape.budgets)]
            measured.append((fresh, arms))
            take_turns(arms, options.turns, generate, deadline, say, keep)
            if options.profile and len(measured) == 1:
                profiles |= profile_rounds(arms, options, ids, say)
    except KeyboardInterrupt:
        say("interrupted: what follows is of the turns that were whole")
    finally:
        for server in servers.values():
            server.stop()
    return keep()


def profile_rounds(arms: Sequence[Arm], options: argparse.Namespace, ids: Sequence[int], say: Any) -> dict[str, Any]:
    """Take rounds of the fastest tree backend at B64, of its linear path and of its stock sibling apart."""
    timed = [arm for arm in arms if arm.turns and arm.error is None]
    trees = [arm for arm in timed if arm.name.endswith(f"W{MAX_WIDTH} B64")]
    if not trees:
        return {}
    best = min(trees, key=lambda arm: arm.summary()["ms_a_round"])
    backend = best.server.name.split("-")[1]
    chosen = [best, *(arm for arm in timed if arm.name in {f"tree-{backend} W8 B16", f"linear-{backend}"})]
    found: dict[str, Any] = {}
    for arm in chosen:
        try:
            if arm.tree is not None:
                arm.server.switch(arm.tree)
            trace = arm.server.profile(options.work, ids, min(options.new, 200), 30)
            phases = phase_times(read_trace(trace))
            phases["ms_a_round"] = arm.summary()["ms_a_round"]
            if "busy_us" in phases:
                phases["gap_us"] = round(phases["ms_a_round"] * 1e3 - phases["busy_us"], 1)
            found[arm.name] = phases
        except (ServerFailedError, OSError, ValueError, KeyError, IndexError) as error:
            found[arm.name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        say(f"profile of {arm.name}: {found[arm.name].get('error', 'done')}")
    return found


def _wave(servers: Sequence[Server], arms: Sequence[Arm], shape: Shape, bandwidth: float) -> dict[str, Any]:
    figures = [arm.summary() for arm in arms]
    timed = [each for each in figures if "ms_a_round" in each]
    # Where no stock server fits beside a tree's, its own linear path is what it is held against.
    stock = [each["ms_a_round"] for each in timed if each["kind"] == "linear"]
    linear = stock or [each["ms_a_round"] for each in timed if each["arm"].endswith(" W1")]
    for each in figures:
        if "ms_a_round" in each:
            floor = shape.round_bytes(each["rows"], has_draft=each["kind"] != "plain") / bandwidth / 1e9
            each |= {"floor_ms": round(floor, 3), "above_floor": round(each["ms_a_round"] / floor, 4)}
            each["ratio_to_fastest_linear"] = round(each["ms_a_round"] / min(linear), 4) if linear else None
    return {
        "servers": [
            {"server": each.name, "words": [word.replace(str(each.folder), ".") for word in each.words],
             "seconds_to_start": each.seconds_to_start, "error": each.error}
            for each in servers
        ],
        "arms": figures,
    }  # fmt: skip


def _document(options: argparse.Namespace, waves: list[dict[str, Any]], profiles: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1, "what": f"ms a round at the shape of {options.shape}, dummy weights, batch 1",
        "shape": options.shape, "commit": options.commit,
        "date": time.strftime("%Y-%m-%d"), "environment": find_environment(), "prompt_tokens": 512,
        "new_tokens": options.new, "forced_accept_length": options.accept, "turns": options.turns,
        "bandwidth_tb_s": options.bandwidth, "waves": waves, "profiles": profiles,
    }  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """Return the document as text."""
    lines = []
    for number, wave in enumerate(document["waves"], start=1):
        lines += [f"wave {number}", f"{'arm':24} {'rows':>4} {'ms a round':>10} {'min':>7} {'max':>7} {'to linear':>9}"
                  f" {'to floor':>8} {'accept':>6} {'tok/s':>7} {'graph':>11} turns"]  # fmt: skip
        for arm in wave["arms"]:
            if "ms_a_round" not in arm:
                lines.append(f"{arm['arm']:24} failed: {arm['error']}")
                continue
            by_turn = arm["ms_a_round_by_turn"]
            lines.append(
                f"{arm['arm']:24} {arm['rows']:4} {arm['ms_a_round']:10.3f} {min(by_turn):7.3f} {max(by_turn):7.3f} "
                f"{arm['ratio_to_fastest_linear'] or 0:9.4f} {arm['above_floor']:8.3f} {arm['accept_length']:6.2f} "
                f"{arm['tokens_per_s']:7.1f} {arm['graph_rounds']:5}/{arm['counted_rounds']:<5} {arm['turns']}"
            )
        lines += [f"{each['server']}: {each['error']}" for each in wave["servers"] if each["error"]]
    if profiles := document["profiles"]:
        lines.append("us a round by phase: " + " | ".join(profiles))
        for phase in (*PHASES, "busy_us", "gap_us", "span_us", "rounds", "kernels"):
            cells = [each.get("us", {}).get(phase, each.get(phase)) for each in profiles.values()]
            lines.append(f"{phase:44} " + " ".join(f"{cell if cell is not None else '-':>12}" for cell in cells))
        lines += [f"{name}: {each['error']}" for name, each in profiles.items() if "error" in each]
    return "\n".join(lines)


def main() -> None:
    """Measure, write and print the table last."""
    options = parse()
    if options.launch == SGLANG_SERVER:
        exit_without(sglang=True, gpu=True)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    document = measure(options, lambda text: print(f"[{time.monotonic() - begin:6.1f}] {text}", flush=True))
    print(table(document))
    exit_if_nothing_ran([arm for wave in document["waves"] for arm in wave["arms"]], options.work)


if __name__ == "__main__":
    main()
