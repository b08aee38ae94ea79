"""The load is the one asked for: as many requests at once, no waiting for each other, nothing else in between."""

import threading
import time
from pathlib import Path

import pytest

from jetspec_cli.bench import runner as runner_module
from jetspec_cli.bench.plan import BenchSpec, Load, pair
from jetspec_cli.bench.receiving import Received
from jetspec_cli.bench.runner import Runner
from jetspec_cli.bench.server import Bench
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from support.mock_server import Script
from support.paced_server import paced_server
from support.stream_server import stream_server

PAIRING = pair(None, ())
CAME = Received(
    path="/v1/completions", has_our_counters=False, started_s=0.0, ttft_s=0.1, e2e_s=0.2,
    payloads=(b'{"choices": [{"text": "a", "finish_reason": "stop"}]}',),
)  # fmt: skip


def run(url, num_prompts, *, has_warm_up=True, **load):
    """Run one block and return its rows."""
    prompts = [Prompt(prompt_id=f"p{n}", text=f"question {n}") for n in range(num_prompts)]
    spec = BenchSpec(kind="bench", prompts=(Path("p.jsonl"),), pairings=(PAIRING,), load=Load(repeat=1, **load))
    with ServerClient.connect(url) as client:
        runner = Runner(spec, prompts, Bench(client=client, process=None))
        if has_warm_up:
            runner.warm_up(PAIRING)
        return [row for block in spec.blocks(prompts) for row in runner.run(block)]


def test_each_of_many_requests_at_once_has_a_connection_that_is_kept():
    with paced_server(num_events=20, spacing_s=0.01, prefill_s=0.5) as paced:
        rows = run(paced.url, 96, concurrency=48)
        sent = paced.sent()
    assert all(row["is_ok"] for row in rows), rows
    # And two for the questions that are no streams.
    assert sent["num_connections"] <= 48 + 2
    spans = sorted((one["came_s"], one["events_s"][-1]) for one in sent["requests"][-96:])
    # The server takes the time of an answer's end a little after the client has it.
    assert 46 <= max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) <= 50
    for row, (begin, end) in zip(sorted(rows, key=lambda row: row["started_s"]), spans, strict=True):
        assert row["e2e_s"] > 0.9 * (end - begin)


@pytest.mark.parametrize("asked", [{"concurrency": 2}, {"request_rate": 500.0}])
def test_a_long_request_holds_up_no_other(monkeypatch, asked):
    lock, are_others_done = threading.Lock(), threading.Event()
    running, most, left = 0, 0, 5

    def receive(client, prompt, cap):
        nonlocal running, most, left
        with lock:
            running += 1
            most = max(most, running)
        if prompt.prompt_id == "p0":
            assert are_others_done.wait(20), "the others wait for the long one"
        with lock:
            running -= 1
            left -= prompt.prompt_id != "p0"
            if not left:
                are_others_done.set()
        return CAME

    monkeypatch.setattr(runner_module, "receive", receive)
    with stream_server(Script(kind="openai")) as (url, _):
        rows = run(url, 6, has_warm_up=False, **asked)
    assert [row["prompt_id"] for row in rows] == [f"p{n}" for n in range(6)]
    assert all(row["is_ok"] for row in rows)
    assert most == 2 or "request_rate" in asked


def test_prompts_are_rendered_before_the_load_begins():
    with stream_server() as (url, state):
        assert all(row["is_ok"] for row in run(url, 6, concurrency=3, max_new_tokens=8))
    paths = state.paths()
    last = len(paths) - paths[::-1].index("/jetspec/render")
    assert paths[last:] == ["/flush_cache", *["/generate"] * 6]


def test_an_interrupt_sends_no_further_request(monkeypatch):
    sent = []

    def receive(client, prompt, cap):
        sent.append(prompt.prompt_id)
        if len(sent) == 2:
            raise KeyboardInterrupt
        time.sleep(0.01)
        return CAME

    monkeypatch.setattr(runner_module, "receive", receive)
    with stream_server(Script(kind="openai")) as (url, _), pytest.raises(KeyboardInterrupt):
        run(url, 500, has_warm_up=False, concurrency=2)
    assert len(sent) < 400
