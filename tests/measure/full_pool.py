"""The most memory that a server takes: python -m tests.measure.full_pool --out results/cpu/full-pool.json.

Libraries keep something for every shape they meet, and cache slots take memory once they are touched. So the worst case
is many mixed requests, and then every page in use: prompts of arbitrary ids, as long as the context allows, decoded at
the same time until the pool holds no further one. Exits 1 when the peak is above the limit or the pool did not fill.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.measure.common import write
from tests.measure.server import running_server, status
from tests.measure.soak import LIMIT_BYTES, NUM_CLIENTS, Soak

TIMEOUT_S = 1800.0
NUM_MIXED = 100
NUM_NEW = 64
# Slots that a round reserves for its tree, and what is lost to whole pages.
RESERVE = 160
MIN_USED_RATE = 0.95
SAMPLE_S = 0.5


def lengths(num_slots: int, context: int) -> list[int]:
    """Return the lengths of prompts that fill the slots together."""
    found = []
    while num_slots > RESERVE + NUM_NEW:
        length = min(context - NUM_NEW - 1, num_slots - RESERVE - NUM_NEW)
        found.append(length)
        num_slots -= length + NUM_NEW + RESERVE
    return found


def fill(url: str, pid: int, info: dict[str, Any]) -> dict[str, Any]:
    """Make the mixed requests, fill the pool and return what it took."""
    soak, rng = Soak(url, 0), random.Random(0)
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        list(pool.map(soak.one, soak.plan(NUM_MIXED)))
    pages, peak_before = soak.drain(), status(pid)["VmHWM"]
    planned = lengths(int(pages["jetspec_pages"]) * info["page_size"], info["max_seq_len"])

    def ask(length: int) -> int:
        ids = [rng.randrange(100, 40000) for _ in range(length)]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": NUM_NEW, "ignore_eos": True}}
        return httpx.post(f"{url}/generate", json=body, timeout=TIMEOUT_S, trust_env=False).status_code

    fewest = pages["jetspec_pages_free"]
    with ThreadPoolExecutor(len(planned)) as pool:
        asked = [pool.submit(ask, length) for length in planned]
        while not all(one.done() for one in asked):
            fewest = min(fewest, soak.gauges()["jetspec_pages_free"])
            time.sleep(SAMPLE_S)
    return {
        "num_mixed_requests": NUM_MIXED,
        "peak_rss_bytes_before": peak_before,
        "prompt_lengths": planned,
        "new_tokens": NUM_NEW,
        "statuses": [one.result() for one in asked],
        "pages_total": pages["jetspec_pages"],
        "pages_free_fewest": fewest,
        "pages_free_after": soak.drain()["jetspec_pages_free"],
        "peak_rss_bytes": status(pid)["VmHWM"],
    }


def found_problems(result: dict[str, Any]) -> list[str]:
    """Return what must not be, one line each."""
    used, total, peak = (
        result["pages_total"] - result["pages_free_fewest"],
        result["pages_total"],
        result["peak_rss_bytes"],
    )
    bad = [f"status {code}" for code in result["statuses"] if code != 200]
    if used < MIN_USED_RATE * total:
        bad.append(f"the pool did not fill: {used} of {total} pages in use at most")
    if result["pages_free_after"] != total:
        bad.append(f"free pages: {result['pages_free_after']} of {total} at the end")
    if peak > LIMIT_BYTES:
        bad.append(f"peak memory: {peak} bytes, expected at most {LIMIT_BYTES}")
    return bad


def main() -> None:
    """Start a server, fill it and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    with running_server("--threads", str(options.threads), "--dtype", options.dtype) as server:
        result = fill(server.url, server.pid, server.info)
    write(options.out, server.stamp() | {"result": result | {"server_exit_code": server.exit_code}})
    problems = found_problems(result)
    print("\n".join(problems) or f"{result['peak_rss_bytes']} bytes at most")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
