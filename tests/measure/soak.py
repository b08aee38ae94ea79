"""Hundreds of mixed requests against a real server: python -m tests.measure.soak --out results/cpu/soak.json.

Plain answers, streams, chats, stop strings, prompts given as ids, long prompts, bad bodies, streams whose client leaves
and requests that are aborted, several at a time. Afterwards every page must be free, no thread may be left over, no
answer may have been a 5xx, and the resident memory is written down as it went.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.measure.common import CLASSES, read_prompts, write
from tests.measure.server import running_server, status

LIMIT_BYTES = 1_500_000_000
TIMEOUT_S = 600.0
# asyncio runs blocking calls in a pool that grows to this many threads, and starts them one by one.
NUM_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
# Requests at the same time: more than the server decodes at once, so that some wait.
NUM_CLIENTS = 6
SAMPLE_EVERY = 25
STOPS = ([" the"], [".", "\n"], [" 7"], ["\n\n"])
BAD_BODIES = (
    {"text": "x", "sampling_params": {"max_new_tokens": -1}},
    {"text": "x", "sampling_params": {"temperature": 0.7}},
    {"input_ids": [1, 2, 10**9]},
    {"input_ids": []},
    {"sampling_params": {}},
    {"text": 7},
)


class Soak:
    """One server under mixed requests.

    Attributes:
        outcomes: how many requests of each kind ended how.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._random = random.Random(seed)
        self._messages = [row["messages"] for name in CLASSES for row in read_prompts(name)]
        self._kinds: tuple[tuple[Callable[[int, random.Random], str], int], ...] = (
            (self._plain, 6),
            (self._ids, 3),
            (self._stop, 4),
            (self._stream, 4),
            (self._chat, 4),
            (self._leave, 4),
            (self._abort, 3),
            (self._long, 1),
            (self._bad, 3),
        )

    def plan(self, count: int) -> list[tuple[Callable[[int, random.Random], str], int, int]]:
        """Return the requests to make: what, its number and its own seed."""
        kinds, weights = zip(*self._kinds, strict=True)
        return [(self._random.choices(kinds, weights)[0], n, self._random.getrandbits(32)) for n in range(count)]

    def one(self, planned: tuple[Callable[[int, random.Random], str], int, int]) -> None:
        """Make one request and count how it ended."""
        make, number, seed = planned
        try:
            ended = make(number, random.Random(seed))
        except httpx.HTTPError as error:
            ended = type(error).__name__
        self.outcomes[f"{make.__name__.strip('_')}: {ended}"] += 1

    def gauges(self) -> dict[str, float]:
        """Return the server's metrics."""
        lines = self._client.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line and line[0] != "#")}

    def drain(self) -> dict[str, float]:
        """Wait until nothing runs, flush the cache and return the metrics."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = self.gauges()
            if not found["jetspec_requests_running"] + found["jetspec_requests_waiting"]:
                self._client.post("/flush_cache").raise_for_status()
                return self.gauges()
            time.sleep(0.1)
        raise RuntimeError("requests are still running")

    def _text(self, rng: random.Random) -> str:
        text: str = rng.choice(self._messages)[-1]["content"]
        return text[: rng.randint(1, len(text))]

    def _generate(self, body: dict[str, Any]) -> str:
        return str(self._client.post("/generate", json=body).status_code)

    def _plain(self, _: int, rng: random.Random) -> str:
        return self._generate({"text": self._text(rng), "sampling_params": {"max_new_tokens": rng.randint(1, 40)}})

    def _ids(self, _: int, rng: random.Random) -> str:
        ids = [rng.randrange(49152) for _ in range(rng.randint(1, 200))]
        sampling = {"max_new_tokens": rng.randint(1, 40), "ignore_eos": True}
        return self._generate({"input_ids": ids, "sampling_params": sampling})

    def _stop(self, _: int, rng: random.Random) -> str:
        sampling = {"max_new_tokens": 64, "stop": rng.choice(STOPS), "min_new_tokens": rng.choice((0, 5))}
        return self._generate({"text": self._text(rng), "sampling_params": sampling})

    def _long(self, _: int, rng: random.Random) -> str:
        text = " ".join(self._text(rng) for _ in range(40))[:6000]
        return self._generate({"text": text, "sampling_params": {"max_new_tokens": 8}})

    def _bad(self, _: int, rng: random.Random) -> str:
        return self._generate(rng.choice(BAD_BODIES))

    def _stream(self, _: int, rng: random.Random) -> str:
        body = {"prompt": self._text(rng), "max_tokens": rng.randint(1, 60), "stream": True, "model": "smollm2-135m"}
        return self._read("/v1/completions", body, None)

    def _chat(self, _: int, rng: random.Random) -> str:
        body = {"messages": rng.choice(self._messages), "max_tokens": rng.randint(1, 60), "stream": True}
        return self._read("/v1/chat/completions", {**body, "model": "smollm2-135m"}, None)

    def _leave(self, _: int, rng: random.Random) -> str:
        sampling = {"max_new_tokens": 400, "ignore_eos": True}
        body = {"text": self._text(rng), "sampling_params": sampling, "stream": True}
        return self._read("/generate", body, rng.randint(1, 5))

    def _abort(self, number: int, rng: random.Random) -> str:
        sampling = {"max_new_tokens": 400, "ignore_eos": True}
        body = {"text": self._text(rng), "rid": f"soak-{number}", "sampling_params": sampling, "stream": True}
        return self._read("/generate", body, rng.randint(1, 5), aborts=f"soak-{number}")

    def _read(self, path: str, body: dict[str, Any], leave_after: int | None, aborts: str | None = None) -> str:
        """Read a stream to its end, or leave it, or have it aborted, after some events."""
        last = ""
        with self._client.stream("POST", path, json=body) as answer:
            events = (line for line in answer.iter_lines() if line.startswith("data: "))
            for count, last in enumerate(events, 1):  # noqa: B007
                if count == leave_after and aborts is None:
                    return f"{answer.status_code} left"
                if count == leave_after:
                    self._client.post("/abort_request", json={"rid": aborts})
            return f"{answer.status_code} {'done' if last == 'data: [DONE]' else last[:80]}"


def main() -> None:
    """Start a server, soak it and write the report; exits 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    with running_server("--threads", str(options.threads), "--dtype", options.dtype) as server:
        result = run(Soak(server.url, options.seed), server.pid, options.requests)
    result["server_exit_code"] = server.exit_code
    write(options.out, server.stamp() | {"result": result})
    problems = found_problems(result)
    print("\n".join(problems) or "nothing was lost")
    sys.exit(1 if problems else 0)


def run(soak: Soak, pid: int, count: int) -> dict[str, Any]:
    """Make the requests and return the counts and the memory as it went."""
    before = soak.drain()
    samples = [memory(pid, 0)]
    planned = soak.plan(count)
    begin = time.monotonic()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for first in range(0, count, SAMPLE_EVERY):
            list(pool.map(soak.one, planned[first : first + SAMPLE_EVERY]))
            samples.append(memory(pid, min(first + SAMPLE_EVERY, count)))
            print(samples[-1], flush=True)
    after = soak.drain()
    return {
        "num_requests": count,
        "wall_s": time.monotonic() - begin,
        "outcomes": dict(sorted(soak.outcomes.items())),
        "pages_free_before": before["jetspec_pages_free"],
        "pages_free_after": after["jetspec_pages_free"],
        "num_threads_at_start": samples[0]["num_threads"],
        "num_threads_at_end": status(pid)["Threads"],
        "engine_failures": after["jetspec_engine_failures_total"],
        "metrics": after,
        "memory": samples,
        "peak_rss_bytes": status(pid)["VmHWM"],
    }


def found_problems(result: dict[str, Any]) -> list[str]:
    """Return what the soak must not show, one line each."""
    failed = [f"{kind}: {n}" for kind, n in result["outcomes"].items() if not has_ended_well(kind)]
    before, after = result["pages_free_before"], result["pages_free_after"]
    lost = [f"free pages: {before} before, {after} after"] if before != after else []
    begun, ended = result["num_threads_at_start"], result["num_threads_at_end"]
    leaked = [f"threads: {begun} at the start, {ended} at the end"] if ended > begun + NUM_POOL_THREADS else []
    peak = result["peak_rss_bytes"]
    large = [f"peak memory: {peak} bytes, expected at most {LIMIT_BYTES}"] if peak > LIMIT_BYTES else []
    crashed = [f"engine failures: {result['engine_failures']}"] if result["engine_failures"] else []
    return failed + lost + leaked + large + crashed


def has_ended_well(kind: str) -> bool:
    """Whether ``"kind: status ..."`` is what such a request should come to."""
    name, _, ended = kind.partition(": ")
    wanted = "4" if name == "bad" else "200 left" if name == "leave" else "200"
    return ended.startswith(wanted) and "error" not in ended


def memory(pid: int, num_done: int) -> dict[str, int]:
    """Return the resident memory now, in bytes, the threads, and after how many requests that is."""
    found = status(pid)
    return {"num_done": num_done, "rss": found["VmRSS"], "num_threads": found["Threads"]}


if __name__ == "__main__":
    main()
