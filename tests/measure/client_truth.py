"""Our client against the truth: python -m tests.measure.client_truth --concurrency 1,4,16,64 --out client_truth.json.

A server in another process streams events at moments it knows (``tests/support/paced_server.py``): 58 events of 160
tokens, as stock SGLang shapes them. What ``jetspec bench`` measures is held against them, and its processor time
counted. With ``--spacing-ms 0`` everything comes at once: how many events a second the client can take. Knows the
bench's runner; nothing of engines.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.measure.common import ROOT, cpu_name, write

from jetspec_cli.bench.plan import BenchSpec, Load, pair
from jetspec_cli.bench.runner import Runner
from jetspec_cli.bench.server import Bench
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient

sys.path.insert(0, str(ROOT / "tests"))
from support.paced_server import Paced, paced_server

NUM_EVENTS = 58


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--concurrency", default="1,4,16,64", help="list")
    parser.add_argument("--rounds", type=int, default=6, help="requests for each one at once")
    parser.add_argument("--spacing-ms", type=float, default=4.0)
    parser.add_argument("--prefill-ms", type=float, default=30.0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def measure(paced: Paced, concurrency: int, count: int) -> dict[str, Any]:
    """Send so many requests, and return what the client says beside what the server did."""
    pairing = pair(None, ())
    prompts = [Prompt(prompt_id=f"p{n}", text=f"question {n}") for n in range(count)]
    load = Load(repeat=1, concurrency=concurrency, max_new_tokens=160)
    spec = BenchSpec(kind="bench", prompts=(Path("none.jsonl"),), pairings=(pairing,), load=load)
    with ServerClient.connect(paced.url) as client:
        runner = Runner(spec, prompts, Bench(client=client, process=None))
        runner.warm_up(pairing)
        wall, cpu = time.perf_counter(), time.process_time()
        rows = [row for block in spec.blocks(prompts) for row in runner.run(block)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    sent = paced.sent()["requests"][-count:]
    begins, ends = [one["came_s"] for one in sent], [one["events_s"][-1] for one in sent]
    true_s = {
        "ttft": [one["events_s"][0] - one["came_s"] for one in sent],
        "tpot": [(one["events_s"][-1] - one["events_s"][0]) / 159 for one in sent],
        "e2e": [end - begin for begin, end in zip(begins, ends, strict=True)],
    }
    return {
        "concurrency": concurrency,
        "requests": count,
        **{f"{name}_ms": median(row[f"{name}_s"] for row in rows) * 1e3 for name in true_s},
        **{f"true_{name}_ms": median(values) * 1e3 for name, values in true_s.items()},
        "mean_concurrency": sum(true_s["e2e"]) / (max(ends) - min(begins)),
        "cpu_us_an_event": cpu / count / NUM_EVENTS * 1e6,
        "events_a_second": count * NUM_EVENTS / wall,
    }


def main() -> None:
    """Measure, write, and print a table."""
    options = parse()
    rows = []
    for concurrency in map(int, options.concurrency.split(",")):
        with paced_server(
            num_events=NUM_EVENTS, spacing_s=options.spacing_ms / 1e3, prefill_s=options.prefill_ms / 1e3
        ) as paced:
            rows.append(measure(paced, concurrency, concurrency * options.rounds))
    write(options.out, {
        "schema_version": 1, "what": "our client against a server whose moments are known", "cpu": cpu_name(),
        "date": time.strftime("%Y-%m-%d"), "spacing_ms": options.spacing_ms, "prefill_ms": options.prefill_ms,
        "rows": rows,
    })  # fmt: skip
    print("  ".join(f"{name:>16}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:16.3f}" for value in row.values()))


if __name__ == "__main__":
    main()
