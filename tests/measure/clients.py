"""Two clients on one server: python -m tests.measure.clients --url URL --tokenizer FOLDER --out clients.json.

``jetspec bench`` and SGLang's own ``sglang.bench_serving`` take turns with the same texts, caps and concurrency; tok/s,
TTFT and TPOT are compared by the ratios of neighbouring passes. Passes of one client vary by a quarter where the server
is bound by a processor, so many short ones say more than few long ones. The other client flushes the prefix cache once
a pass, and we before every prompt, so each text begins with a system message of its own: nothing is cached for either.
Knows the two command lines; nothing of the server.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tests.measure.common import cpu_name, read_prompts, write
from tests.measure.needs import exit_without
from tests.measure.sglang_arms import find_environment

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tokenizer import ModelTokenizer

LOOP = f"{sys.executable} -m tests.measure.client_loop"
SGLANG_CLIENT = f"{LOOP} sglang"
NAMES = ("jetspec bench", "sglang.bench_serving")
# Of a pass; these are compared.
FIGURES = ("tok_s", "e2e_ms_mean", "ttft_ms_median", "tpot_ms_median", "tpot_ms_mean")
# The other client shuffles its prompts by it; ours get that order, or a pass would end with other stragglers.
SEED = 42
# Clients agree when the interval of their ratio lies within 1 / BOUND and BOUND.
BOUND = 1.1
CONFIDENCE = 0.95
Pass = dict[str, Any]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="the target's folder")
    parser.add_argument("--out", type=Path, required=True, help="the result document")
    parser.add_argument("--work", type=Path, default=Path("clients"), help="folder for prompts and results")
    parser.add_argument("--prompts", default="10", help="prompts/NAME.jsonl")
    parser.add_argument("--copies", type=int, default=1, help="times each prompt is asked in a pass")
    parser.add_argument("--new", type=int, default=160, help="most tokens an answer")
    parser.add_argument("--turns", type=int, default=30, help="the first is a warm-up")
    parser.add_argument("--concurrency", default="1", help="list, such as 1,4")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which no turn begins")
    parser.add_argument(
        "--other", default=SGLANG_CLIENT, help="command that runs the other client for each line of its stdin"
    )
    parser.add_argument("--about", default="", help="what the server runs, for the document")
    return parser.parse_args()


def write_texts(options: argparse.Namespace) -> int:
    """Write the rendered prompts for both clients; returns how many requests a pass has."""
    tokenizer = ModelTokenizer.from_folder(options.tokenizer, DecoderConfig.from_folder(options.tokenizer))
    asked = []
    for number, prompt in enumerate(read_prompts(options.prompts) * options.copies, start=1):
        system = {"role": "system", "content": f"{number} is the number of this question."}
        asked.append((f"{prompt['id']} {number}", tokenizer.render_chat([system, *prompt["messages"]])))
    # The second turn is not asked for; the dataset's reader wants one.
    other = [{"conversations": [{"content": text}, {"content": "of no use"}]} for _, text in asked]
    random.Random(SEED).shuffle(asked)
    ours = [{"id": name, "class": "all", "prompt": text, "max_new_tokens": options.new} for name, text in asked]
    for name, lines in (("ours", ours), ("other", other)):
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (options.work / f"{name}.jsonl").write_text(content, encoding="utf-8")
    return len(asked)


def run_ours(options: argparse.Namespace, concurrency: int, number: int, _: int, client: "Client") -> Pass:
    """Run ``jetspec bench`` once."""
    out = options.work / f"ours-{concurrency}-{number}.json"
    for old in options.work.glob(f"{out.stem}.*"):
        old.unlink()  # a finished measurement would be resumed, not made again
    client.ask([
        "bench", f"--url={options.url}", f"--prompts={options.work}/ours.jsonl", "--repeat=1",
        f"--concurrency={concurrency}", f"--out={out}", "--format=json",
    ])  # fmt: skip
    document = json.loads(out.read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in out.with_name(out.stem + ".requests.ndjson").read_text().splitlines()[1:]]
    cell = document["cells"][0]
    return {
        "tok_s": cell["tok_s"]["value"],
        **_spread("ttft", [row["ttft_s"] for row in rows]),
        **_spread("tpot", [row["tpot_s"] for row in rows if row["tpot_s"] is not None]),
        **_spread("e2e", [row["e2e_s"] for row in rows]),
        "num_requests": cell["num_requests"] - cell["num_failed"],
        "num_tokens": sum(row["num_emitted_tokens"] for row in rows),
        "accept_length": cell["accept_length"],
    }


class Client:
    """A client in a process of its own, which stays for all passes: its start is no part of a turn."""

    def __init__(self, name: str, command: str, log: Path) -> None:
        self._name = name
        self._log = log.open("a", encoding="utf-8")
        self._process = subprocess.Popen(
            command.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=environment(),
        )  # fmt: skip

    def ask(self, words: Sequence[str]) -> None:
        """Run it once. Raises RuntimeError when it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(list(words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: its last line says why, or there is none
        failure = json.loads(self._process.stdout.readline() or '{"failure": "it has ended"}')["failure"]
        if failure:
            raise RuntimeError(f"{self._name}: {failure}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def run_other(options: argparse.Namespace, concurrency: int, number: int, num_requests: int, client: Client) -> Pass:
    """Run ``sglang.bench_serving`` once; its own figures."""
    out = options.work / f"other-{concurrency}-{number}.jsonl"
    words = [
        "--backend=sglang", f"--base-url={options.url}", f"--model={options.tokenizer}",
        f"--tokenizer={options.tokenizer}", "--dataset-name=custom", f"--dataset-path={options.work}/other.jsonl",
        f"--num-prompts={num_requests}", f"--sharegpt-output-len={options.new}", "--disable-ignore-eos",
        "--temperature=0", "--flush-cache", f"--max-concurrency={concurrency}", f"--output-file={out}",
        f"--seed={SEED}", "--disable-tqdm",
    ]  # fmt: skip
    client.ask(words)
    found = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    points = {
        f"{ours}_ms_{point}": found[f"{point}_{theirs}_ms"]
        for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2e_latency"))
        for point in ("mean", "median")
    }
    return {
        "tok_s": found["output_throughput"], **points, "num_requests": found["completed"],
        "num_tokens": found["total_output_tokens"], "accept_length": found.get("accept_length"),
    }  # fmt: skip


def compare(passes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for every concurrency and figure each client's median, lowest and highest pass, and their ratio by turn.

    A turn's two passes follow each other, so that their ratio suffers less from a machine that drifts. In the first
    turn the server may still prepare for what it has not seen: it is left out where there are others.
    """
    later = [one for one in passes if one["turn"] > 0] or passes
    found = []
    for concurrency in dict.fromkeys(one["concurrency"] for one in later):
        for figure in FIGURES:
            by_turn = [
                {p["turn"]: p[figure] for p in later if (p["client"], p["concurrency"]) == (name, concurrency)}
                for name in NAMES
            ]
            ratios = [by_turn[0][turn] / by_turn[1][turn] for turn in by_turn[0] if by_turn[1].get(turn)]
            if not ratios:
                continue
            found.append({
                "concurrency": concurrency, "figure": figure,
                **{name: {"median": median(each.values()), "min": min(each.values()), "max": max(each.values()),
                   "passes": len(each)} for name, each in zip(NAMES, by_turn, strict=True)},
                "ratio": median(ratios), "ratio_interval": median_interval(ratios), "ratio_by_turn": ratios,
                "verdict": verdict(median_interval(ratios)),
            })  # fmt: skip
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval that holds the median with ``CONFIDENCE``, whatever the distribution; None below six values.

    Source: the sign test's interval, between order statistics.
    """
    ordered, count = sorted(values), len(values)
    outside, left_out = 0.0, -1
    while (outside := outside + 2 * comb(count, left_out + 1) / 2**count) <= 1 - CONFIDENCE:
        left_out += 1
    return None if left_out < 0 else (ordered[left_out], ordered[count - 1 - left_out])


def verdict(interval: tuple[float, float] | None) -> str:
    """Say whether two clients agree (within ``BOUND``), differ, or whether the passes are too few or too unlike."""
    if interval is None:
        return "undecided"
    low, high = interval
    if low >= 1 / BOUND and high <= BOUND:
        return "agree"
    return "differ" if low > 1 or high < 1 else "undecided"


def table(document: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    lines = [f"{'concurrency':>11} {'figure':16} {NAMES[0]:>28} {NAMES[1]:>28} {'ratio [95 %], turns':>26} verdict"]
    for row in document["compared"]:
        cells = [f"{row[n]['median']:.2f} ({row[n]['min']:.2f}-{row[n]['max']:.2f})" for n in NAMES]
        span = row["ratio_interval"]
        words = f"[{span[0]:.3f}, {span[1]:.3f}]" if span else "[too few]"
        ratio = f"{row['ratio']:.3f} {words}, {len(row['ratio_by_turn'])}"
        lines.append(
            f"{row['concurrency']:11} {row['figure']:16} {cells[0]:>28} {cells[1]:>28} {ratio:>26} {row['verdict']}"
        )
    tokens = sorted({(one["client"], one["num_requests"], one["num_tokens"]) for one in document["passes"]})
    return "\n".join([*lines, *(f"{name}: {count} requests, {total} tokens a pass" for name, count, total in tokens)])


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}_ms_mean": fmean(seconds) * 1e3, f"{name}_ms_median": median(seconds) * 1e3}


def environment() -> dict[str, str]:
    """Return the clients' environment: a proxy is not for a server of this machine."""
    return {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}


def turns(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield client, concurrency and turn; odd turns begin with the other client."""
    for number in range(options.turns):
        for word in options.concurrency.split(","):
            for name in NAMES[:: -1 if number % 2 else 1]:
                yield name, int(word), number


def main() -> None:
    """Let the clients take turns, write, and print the table last."""
    options = parse()
    if options.other == SGLANG_CLIENT:
        exit_without(sglang=True)
    options.work.mkdir(parents=True, exist_ok=True)
    begin, passes, failures = time.monotonic(), [], []
    num_requests = write_texts(options)
    commands = {NAMES[0]: f"{LOOP} jetspec", NAMES[1]: options.other}
    clients = {
        name: Client(name, command, options.work / f"{name}.log".replace(" ", "-"))
        for name, command in commands.items()
    }
    runs = dict(zip(NAMES, (run_ours, run_other), strict=True))
    try:
        for name, concurrency, number in turns(options):
            if time.monotonic() - begin > options.limit:
                break
            try:
                found = runs[name](options, concurrency, number, num_requests, clients[name])
                passes.append({"client": name, "concurrency": concurrency, "turn": number, **found})
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                failures.append(f"{name}, concurrency {concurrency}: {error!r}"[:1800])
            print(f"[{time.monotonic() - begin:6.1f}] {name}, {concurrency} at once", flush=True)
    except KeyboardInterrupt:
        failures.append("interrupted")
    finally:
        for client in clients.values():
            client.close()
    document = {
        "schema_version": 1, "what": "two clients on one server", "server": options.about,
        "date": time.strftime("%Y-%m-%d"), "environment": {**find_environment(), "cpu": cpu_name()},
        "prompts": options.prompts, "requests_a_pass": num_requests, "max_new_tokens": options.new,
        "compared": compare(passes), "passes": passes, "failures": failures,
    }  # fmt: skip
    write(options.out, document)
    print("\n".join([*failures, table(document)]))


if __name__ == "__main__":
    main()
