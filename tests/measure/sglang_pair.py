"""Tokens a second on SGLang with the demo pair, batch 1: python -m tests.measure.sglang_pair --out pair.json.

Servers take turns over the same prompts, prefill excluded; nothing is forced. First stock DFLASH and JETSPEC servers
of width 1, with ``--exact`` also under SGLang's deterministic mode: many turns of one prompt each, as they are to be
within 2 % of each other and a round of so small a pair is the host's; then plain decoding, stock DFLASH and trees.
Tokens are compared between arms. The demo pair must be in the model cache.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.measure.common import cache_dir, read_prompts, write
from tests.measure.needs import exit_without
from tests.measure.sglang_arms import Arm, exit_if_nothing_ran, find_environment, paired_ratio, take_turns, wait_for
from tests.measure.sglang_server import LINEAR, SGLANG_SERVER, Server, Timed, start_all

from jetspec_engine.config import TreeConfig
from jetspec_engine.draft.shipped import shipped_head_folder
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tokenizer import ModelTokenizer

TARGET_NAME = "smollm2-135m"
WIDTH, BUDGETS, BLOCK = 8, (16, 32, 64), 16
TREE_WORDS = (
    f"--speculative-dflash-tree-width={WIDTH}", "--speculative-dflash-tree-budget=64",
    "--speculative-dflash-tree-budgets=16,32,64",
)  # fmt: skip
ONE_WORDS = ("--speculative-dflash-tree-width=1", "--speculative-dflash-tree-max-width=1")
# Without DeepGEMM, deterministic matrix products are Triton's, which start without tuning.
EXACT_ENVIRONMENT = {"SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM": "0"}
# name: algorithm, our words; the mode and the backend are the options'.
KINDS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "plain": (None, ()),
    "linear": ("DFLASH", ()),
    "width1": ("JETSPEC", ONE_WORDS),
    "tree": ("JETSPEC", TREE_WORDS),
}
MODES = {"production": tuple(KINDS), "exact": ("linear", "width1")}
WIDTH_1 = ("linear", "width1")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the result document")
    parser.add_argument("--work", type=Path, default=Path("sglang-pair"), help="folder for logs")
    parser.add_argument("--backend", default="fa3", help="attention of the production mode")
    parser.add_argument("--exact", action="store_true", help="also the deterministic mode, on triton")
    parser.add_argument("--width1-turns", type=int, default=60, help="of stock DFLASH and width 1, a prompt each")
    parser.add_argument("--turns", type=int, default=5, help="of plain decoding, stock DFLASH and trees")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4, help="of prompts/10.jsonl, the first so many")
    parser.add_argument("--wait-for", type=Path, help="a file: measure once it is there, FILE.up says servers are")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of measuring, about")
    parser.add_argument("--start-limit", type=float, default=90.0)
    parser.add_argument("--wait-limit", type=float, default=300.0, help="seconds to wait for the file")
    parser.add_argument("--port", type=int, default=32500)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--launch", default=SGLANG_SERVER, help="the server's command")
    return parser.parse_args()


def make_servers(options: argparse.Namespace) -> list[Server]:
    """Describe the servers of every mode asked for."""
    target, head = cache_dir() / TARGET_NAME, shipped_head_folder(TARGET_NAME)
    modes = [*MODES] if options.exact else ["production"]
    servers = []
    for mode, name in [(each, name) for each in modes for name in MODES[each]]:
        algorithm, own = KINDS[name]
        words = [
            f"--model-path={target}", "--dtype=bfloat16", "--skip-tokenizer-init", "--sampling-backend=pytorch",
            f"--attention-backend={options.backend if mode == 'production' else 'triton'}",
            "--mem-fraction-static=0.6", "--max-total-tokens=16384", "--max-running-requests=4",
            "--context-length=4096", "--disable-radix-cache", "--cuda-graph-bs-decode", "1",
            "--cuda-graph-backend-prefill=disabled", "--random-seed=0", "--skip-server-warmup", "--sleep-on-idle",
            f"--nccl-port={options.port + 1000 + len(servers)}", *own,
        ]  # fmt: skip
        if algorithm is not None:
            words += [f"--speculative-algorithm={algorithm}", f"--speculative-draft-model-path={head}"]
        if mode == "exact":
            words.append("--enable-deterministic-inference")
        environment = EXACT_ENVIRONMENT if mode == "exact" else {}
        server = Server(
            name=f"{name}-{mode}", words=words, port=options.port + len(servers), folder=options.work,
            environment=environment, launch=options.launch.split(),
        )  # fmt: skip
        servers.append(server)
    return servers


def arms_of(server: Server) -> list[Arm]:
    """Return what is measured on a server."""
    name, mode = server.name.split("-")
    if name != "tree":
        kind = "tree" if name == "width1" else name
        return [Arm(name=server.name, server=server, kind=kind, rows=1 if name == "plain" else BLOCK)]
    trees = [("W1", LINEAR, BLOCK), *((f"W{WIDTH} B{n}", TreeConfig(width=WIDTH, budget=n), n) for n in BUDGETS)]
    return [
        Arm(name=f"tree-{mode} {label}", server=server, kind="tree", rows=rows, tree=tree)
        for label, tree, rows in trees
    ]


def _kind(server: Server) -> str:
    return server.name.split("-", maxsplit=1)[0]


def _is_for_trees(server: Server) -> bool:
    return server.name.endswith("-production") and _kind(server) != "width1"


def encode_prompts(count: int) -> dict[str, list[int]]:
    """Return the ids of the first prompts of prompts/10.jsonl by name."""
    folder = cache_dir() / TARGET_NAME
    tokenizer = ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder))
    return {
        prompt["id"]: list(tokenizer.encode_rendered(tokenizer.render_chat(prompt["messages"])))
        for prompt in list(read_prompts("10"))[:count]
    }


def compare(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Return each arm's figures with its tokens and speed against plain decoding and stock DFLASH of its mode."""
    done = {arm.name: arm for arm in arms if arm.turns}
    found = []
    for arm in arms:
        figures = arm.summary()
        mode = arm.server.name.split("-")[1]
        for other in ("plain", "linear"):
            base = done.get(f"{other}-{mode}")
            if base is None or arm.name not in done:
                continue
            pairs = [pair for turn in zip(arm.turns, base.turns, strict=False) for pair in zip(*turn, strict=True)]
            figures[f"same_as_{other}"] = f"{sum(ours.ids == theirs.ids for ours, theirs in pairs)}/{len(pairs)}"
            figures[f"speed_to_{other}"] = round(figures["tokens_per_s"] / base.summary()["tokens_per_s"], 4)
            figures[f"step_to_{other}"] = round(figures["ms_a_round"] / base.summary()["ms_a_round"], 4)
            figures[f"speed_to_{other}_interval"] = paired_ratio(arm.speeds(), base.speeds())
            figures[f"accept_to_{other}"] = round(figures["accept_length"] / base.summary()["accept_length"], 4)
        found.append(figures)
    return found


def table(figures: Sequence[dict[str, Any]]) -> str:
    """Return the figures as text."""
    lines = [f"{'arm':24} {'tok/s':>8} {'ms a round':>10} {'accept':>7} {'graph':>11} | to linear: {'speed':>7}"
             f" {'step':>7} {'accept':>7} same | same as plain, turns"]  # fmt: skip
    for each in figures:
        if "tokens_per_s" not in each:
            lines.append(f"{each['arm']:24} failed: {each['error']}")
            continue
        to_linear = [each.get(f"{name}_to_linear") or 0 for name in ("speed", "step", "accept")]
        lines.append(
            f"{each['arm']:24} {each['tokens_per_s']:8.1f} {each['ms_a_round']:10.3f} {each['accept_length']:7.3f} "
            f"{each['graph_rounds']:5}/{each['counted_rounds']:<5} |            "
            + " ".join(f"{value:7.3f}" for value in to_linear)
            + f" {each.get('same_as_linear', '-'):>7} | {each.get('same_as_plain', '-')}, {each['turns']}"
            + f" | speed to linear {each.get('speed_to_linear_interval', '-')}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, write and print the table last."""
    options = parse()
    if options.launch == SGLANG_SERVER:
        exit_without(sglang=True, gpu=True)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f}] {text}", flush=True)

    prompts = encode_prompts(options.prompts)
    servers = make_servers(options)
    narrow: list[Arm] = []
    arms: list[Arm] = []

    def keep() -> dict[str, Any]:
        """Write what there is."""
        made = document(options, narrow, arms, servers) | {
            "prompts": list(prompts), "seconds": round(time.monotonic() - begin, 1)
        }  # fmt: skip
        write(options.out, made)
        return made

    def generate(server: Server, turn: int) -> list[Timed]:
        del turn
        return [server.generate(ids, options.new, ignores_eos=False) for ids in prompts.values()]

    def generate_one(server: Server, turn: int) -> list[Timed]:
        return [server.generate([*prompts.values()][turn % len(prompts)], options.new, ignores_eos=False)]

    try:
        up = start_all(servers, options.start_limit, say)
        wait_for(options.wait_for, begin + options.start_limit + options.wait_limit, say)
        deadline = time.monotonic() + options.limit
        narrow += [arm for server in up if _kind(server) in WIDTH_1 for arm in arms_of(server)]
        take_turns(narrow, options.width1_turns, generate_one, deadline, say, keep)
        arms += [arm for server in up if _is_for_trees(server) for arm in arms_of(server)]
        take_turns(arms, options.turns, generate, deadline, say, keep)
    except KeyboardInterrupt:
        say("interrupted: what follows is of the turns that were whole")
    finally:
        for server in servers:
            server.stop()
    made = keep()
    print(table(made["width_1"]))
    print(table(made["arms"]))
    for each in servers:
        if each.error:
            print(f"{each.name}: {each.error}")
    exit_if_nothing_ran([*made["width_1"], *made["arms"]], options.work)


def document(
    options: argparse.Namespace, narrow: Sequence[Arm], arms: Sequence[Arm], servers: Sequence[Server]
) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "schema_version": 1, "what": "tokens a second of the demo pair on SGLang, batch 1", "commit": options.commit,
        "date": time.strftime("%Y-%m-%d"), "environment": find_environment(), "new_tokens": options.new,
        "turns": options.turns, "width1_turns": options.width1_turns,
        # Their turns are of different prompts.
        "width_1": [{key: value for key, value in arm.items() if key != "is_repeatable"} for arm in compare(narrow)],
        "arms": compare(arms),
        "servers": [
            {"server": each.name, "words": [word for word in each.words if "-path=" not in word],
             "environment": each.environment, "seconds_to_start": each.seconds_to_start, "error": each.error}
            for each in servers
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
