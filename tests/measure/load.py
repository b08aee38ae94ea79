"""Many clients at once against a real server: python -m tests.measure.load --seconds 600 --out results/cpu/load.json.

64 clients ask natively and OpenAI-compatibly, whole and streamed, with stops and random caps; leave, hang up, abort and
send bad bodies. Every finished text must be the one the same request gets alone, every page must come back, nothing may
be answered with a 5xx, and the resident memory is written down as it goes. A row a request goes to OUT.ndjson.
"""

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import httpx
from tests.measure.common import CLASSES, read_prompts, write
from tests.measure.load_clients import BEHAVIOURS, MISMATCH, WRONG, Case, Outcome, ask
from tests.measure.server import running_server, status
from tests.measure.soak import Soak

TIMEOUT_S = 1200.0
NUM_CASES = 48
STOPS = ((" the",), (".", "\n"), (" is", " are"), ("\n\n",))
SAMPLE_S = 10.0
# A server that meets a shape for the first time keeps something for it; later on, memory must not grow.
MAX_GROWTH = 1.10


class Load:
    """Clients and their records.

    Args:
        url: of the server.
        seed: of every choice.
        rows: receives a line a request.
    """

    def __init__(self, url: str, seed: int, rows: IO[str]) -> None:
        self.url, self._seed, self._rows = url, seed, rows
        self.outcomes: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.remarks: list[str] = []
        self._lock = threading.Lock()
        self._deadline = 0.0
        self.cases: list[Case] = []

    def prepare(self) -> None:
        """Choose the cases and decode each alone, on an empty cache."""
        rng = random.Random(self._seed)
        prompts = [row["messages"] for name in CLASSES for row in read_prompts(name)]
        with self.client() as client:
            for index in range(NUM_CASES):
                messages = rng.choice(prompts)
                text = messages[-1]["content"]
                content = {"messages": messages} if index % 3 == 0 else {"text": text[: rng.randint(4, len(text))]}
                stop = rng.choice(STOPS) if rng.random() < 0.3 else ()
                case = Case(content=content, cap=rng.randint(1, 48), stop=stop)
                client.post("/flush_cache").raise_for_status()
                code, solo = ask(client, case)
                if code != 200:
                    raise RuntimeError(f"a case alone was answered with {code}: {solo}")
                self.cases.append(replace(case, solo=solo))

    def client(self) -> httpx.Client:
        """Return a client; its owner closes it."""
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)

    def run(self, num_clients: int, seconds: float) -> None:
        """Let the clients ask until the time is up; each finishes what it has begun."""
        self._deadline = time.monotonic() + seconds
        threads = [threading.Thread(target=self._one_client, args=(number,)) for number in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one_client(self, number: int) -> None:
        rng = random.Random(self._seed * 1000 + number)
        kinds, weights = zip(*BEHAVIOURS, strict=True)
        count = 0
        with self.client() as client:
            while time.monotonic() < self._deadline:
                behave = rng.choices(kinds, weights)[0]
                case, name = rng.randrange(len(self.cases)), f"load-{number}-{count}"
                begin = time.monotonic()
                try:
                    outcome = behave(client, self.cases[case], rng, name)
                except Exception as error:
                    outcome = Outcome(status=0, ended=WRONG, remark=f"{type(error).__name__}: {error}")
                self._note(behave.__name__, case, outcome, time.monotonic() - begin)
                count += 1

    def _note(self, kind: str, case: int, outcome: Outcome, seconds: float) -> None:
        with self._lock:
            self.outcomes[f"{kind}: {outcome.ended}"] += 1
            self.statuses[str(outcome.status)] += 1
            if outcome.ended in (MISMATCH, WRONG):
                self.remarks.append(f"{kind}, case {case}: {outcome.status} {outcome.ended}: {outcome.remark}"[:400])
            row = {"kind": kind, "case": case, "seconds": round(seconds, 3), **asdict(outcome)}
            self._rows.write(json.dumps(row) + "\n")


class Memory(threading.Thread):
    """Samples a process's resident memory until it is told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, float]] = []
        self._pid, self._over, self._begin = pid, threading.Event(), time.monotonic()

    def run(self) -> None:
        """Sample."""
        while not self._over.wait(SAMPLE_S):
            self.sample()

    def sample(self) -> None:
        """Take one sample now."""
        found = status(self._pid)
        at = round(time.monotonic() - self._begin, 1)
        self.samples.append({"at_s": at, "rss": found["VmRSS"], "num_threads": found["Threads"]})

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()


def main() -> None:
    """Start a server, load it and write the report; exits 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--max-running", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    words = ["--threads", str(options.threads), "--dtype", options.dtype, "--max-running", str(options.max_running)]
    with running_server(*words) as server, options.out.with_suffix(".ndjson").open("w", encoding="utf-8") as rows:
        result = measure(Load(server.url, options.seed, rows), server.pid, options.clients, options.seconds)
    result["server_exit_code"] = server.exit_code
    problems = found_problems(result)
    write(options.out, server.stamp() | {"result": result, "problems": problems})
    print("\n".join(problems) or "nothing is wrong")
    sys.exit(1 if problems else 0)


def measure(load: Load, pid: int, num_clients: int, seconds: float) -> dict[str, Any]:
    """Run the load and return its counts."""
    watch = Soak(load.url, 0)
    load.prepare()
    before = watch.drain()
    memory = Memory(pid)
    memory.sample()
    memory.start()
    begin = time.monotonic()
    load.run(num_clients, seconds)
    wall_s = time.monotonic() - begin
    after = watch.drain()
    memory.stop()
    memory.sample()
    emitted = after["jetspec_emitted_tokens_total"] - before["jetspec_emitted_tokens_total"]
    return {
        "num_clients": num_clients,
        "num_cases": len(load.cases),
        "num_requests": sum(load.outcomes.values()),
        "wall_s": round(wall_s, 1),
        "emitted_tokens": emitted,
        "outcomes": dict(sorted(load.outcomes.items())),
        "statuses": dict(sorted(load.statuses.items())),
        "remarks": load.remarks[:50],
        "pages_free_before": before["jetspec_pages_free"],
        "pages_free_after": after["jetspec_pages_free"],
        "pages_total": after["jetspec_pages"],
        "engine_failures": after["jetspec_engine_failures_total"],
        "memory": memory.samples,
        "peak_rss_bytes": status(pid)["VmHWM"],
        "metrics": after,
    }


def found_problems(result: dict[str, Any]) -> list[str]:
    """Return what a load run must not show, one line each."""
    bad = [f"{kind}: {n}" for kind, n in result["outcomes"].items() if kind.endswith((MISMATCH, WRONG))]
    failures = [f"status {code}: {n}" for code, n in result["statuses"].items() if code.startswith("5")]
    if {result["pages_free_before"], result["pages_free_after"]} != {result["pages_total"]}:
        bad.append(f"free pages: {result['pages_free_before']} before, {result['pages_free_after']} after")
    if result["engine_failures"]:
        bad.append(f"engine failures: {result['engine_failures']}")
    if result["server_exit_code"]:
        bad.append(f"the server exited with {result['server_exit_code']}")
    rss = [sample["rss"] for sample in result["memory"]]
    # Compared within the load: an idle server has not yet met the shapes of many requests at once.
    early, late = max(rss[: max(2, len(rss) // 2)]), max(rss[len(rss) // 2 :])
    if late > early * MAX_GROWTH:
        bad.append(f"memory: {early} bytes in the first half, {late} in the second")
    return bad + failures


if __name__ == "__main__":
    main()
