"""The HTTP surface over the real embedded engine, whose target and drafter are doubles."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import httpx
import pytest

from support.engine_runs import Rig, engine_rig, said
from support.events import parse_events
from support.fake_target import EOS_ID
from support.live_server import LiveServer

CONTEXT = 256
PROMPT = [5, 9, 7, 30, 8]
FREE = {"ignore_eos": True, "temperature": 0}


@contextmanager
def served(**options: object) -> Iterator[tuple[Rig, httpx.Client]]:
    """Serve an engine of doubles; on the way out nothing was reported and no page is lost."""
    with engine_rig(max_seq_len=CONTEXT, **options) as rig, LiveServer(rig.engine) as live, live.client() as client:
        yield rig, client
        assert live.logs == []


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with served() as (_, made):
        yield made


def generate(client: httpx.Client, ids: list[int] = PROMPT, **sampling: object) -> dict:
    answer = client.post("/generate", json={"input_ids": ids, "sampling_params": {**FREE, **sampling}})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("tree", [{"width": 1, "budget": None}, {"width": 1, "budget": 1}, {"width": 4, "budget": 12}])
def test_R17_every_tree_gives_the_greedy_text(client: httpx.Client, tree: dict) -> None:
    assert client.post("/jetspec/tree", json=tree).status_code == 200
    answer = generate(client, max_new_tokens=80)
    assert answer["output_ids"] == said(PROMPT, 80)
    meta = answer["meta_info"]
    assert sum(meta["spec_accept_histogram"]) == meta["spec_verify_ct"]
    assert sum(i * count for i, count in enumerate(meta["spec_accept_histogram"])) == 80
    if tree["budget"] == 1:
        assert meta["spec_verify_ct"] == 80
        assert meta["spec_num_proposed_drafts"] == 0
    else:
        assert meta["spec_verify_ct"] < 80


def test_case_05_delivered_equals_counted_for_every_cap(client: httpx.Client) -> None:
    natural = [*said(PROMPT, 200)]
    natural = natural[: natural.index(EOS_ID) + 1] if EOS_ID in natural else natural
    for cap in range(1, 41):
        answer = generate(client, max_new_tokens=cap, ignore_eos=False)
        assert answer["output_ids"] == natural[:cap]
        assert answer["meta_info"]["completion_tokens"] == min(cap, len(natural))


@pytest.mark.parametrize("missing", [2, 1, 5, 12, 0, -1])
def test_case_18_prompts_around_the_context_are_answered_or_refused(client: httpx.Client, missing: int) -> None:
    ids = [3 + i % 30 for i in range(CONTEXT - missing)]
    answer = client.post("/generate", json={"input_ids": ids, "sampling_params": {**FREE, "max_new_tokens": 64}})
    if missing >= 1:
        assert answer.status_code == 200
        assert answer.json()["output_ids"] == said(ids, missing)
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "length"
    else:
        assert answer.status_code == 400
        assert f"{len(ids)} tokens" in answer.json()["error"]["message"]
    assert generate(client, max_new_tokens=5)["output_ids"] == said(PROMPT, 5)


def test_case_23_streams_end_as_the_plain_text_without_broken_characters(client: httpx.Client) -> None:
    broken = 0
    for seed in range(12):
        ids = [*PROMPT, 3 + seed]
        body = {"input_ids": ids, "sampling_params": {**FREE, "max_new_tokens": 60}}
        plain = client.post("/generate", json=body).json()
        events = parse_events(client.post("/generate", json={**body, "stream": True}).text)
        assert events[-1]["text"] == plain["text"]
        assert events[-1]["output_ids"] == plain["output_ids"] == said(ids, 60)
        assert all(after["text"].startswith(before["text"]) for before, after in pairwise(events))
        chunks = parse_events(
            client.post("/v1/completions", json={"prompt": ids, "max_tokens": 60, "stream": True, **FREE}).text
        )
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == plain["text"]
        broken += "\ufffd" in plain["text"]
    # The double's target emits stray bytes, so some texts do hold U+FFFD: the streams above had to match them too.
    assert broken


def test_case_24_minimum_cap_and_logprobs(client: httpx.Client) -> None:
    assert generate(client, max_new_tokens=0)["output_ids"] == []
    assert generate(client, max_new_tokens=1)["output_ids"] == said(PROMPT, 1)
    body = {"input_ids": PROMPT, "sampling_params": {**FREE, "max_new_tokens": 6}, "return_logprob": True}
    answer = client.post("/generate", json={**body, "top_logprobs_num": 3, "logprob_start_len": 0}).json()
    meta = answer["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [row[0][1] for row in meta["output_top_logprobs"]] == answer["output_ids"]
    assert [token for _, token, _ in meta["input_token_logprobs"]] == PROMPT
    scored = client.post("/jetspec/score", json={"input_ids": PROMPT + answer["output_ids"], "start": 5, "top_k": 1})
    assert [row["top"][0][0] for row in scored.json()["positions"]] == answer["output_ids"]
    for row, (logprob, _, _) in zip(scored.json()["positions"], meta["output_token_logprobs"], strict=True):
        assert row["logprob"] == pytest.approx(logprob, abs=1e-6)


def test_bad_ids_are_refused_by_the_engine_and_it_lives(client: httpx.Client) -> None:
    for body in (
        {"input_ids": [40]},
        {"input_ids": [3, 2**30]},
        {"input_ids": [3], "sampling_params": {"stop_token_ids": [40]}},
    ):
        answer = client.post("/generate", json=body)
        assert answer.status_code == 400
        assert "expected a token id in [0, 39]" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] in ("input_ids", "stop_token_ids")
    assert client.post("/jetspec/score", json={"input_ids": [3, 40]}).status_code == 400
    assert client.get("/health_generate").status_code == 200


def test_R17_a_tree_larger_than_reserved_is_refused(client: httpx.Client) -> None:
    for body in ({"width": 9}, {"width": 8, "budget": 129}):
        answer = client.post("/jetspec/tree", json=body)
        assert answer.status_code == 400
        assert "this server was started for at most" in answer.json()["error"]["message"]


def test_case_25_streams_cut_after_three_chunks_return_their_pages() -> None:
    with served(max_running=3, max_queued=200) as (rig, client):

        def leave() -> None:
            body = {"input_ids": PROMPT, "stream": True, "sampling_params": {**FREE, "max_new_tokens": 240}}
            with client.stream("POST", "/generate", json=body) as answer:
                lines = answer.iter_lines()
                for _ in range(3):
                    next(lines)

        threads = [threading.Thread(target=leave) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while rig.engine.counters()["running"] or rig.engine.counters()["waiting"]:
            threading.Event().wait(0.005)
        assert client.post("/flush_cache").status_code == 200
        counters = rig.engine.counters()
        assert counters["pages_free"] == counters["pages_total"]
        assert counters["requests_finished"] + counters["requests_aborted"] == 24
        assert generate(client, max_new_tokens=20)["output_ids"] == said(PROMPT, 20)


def test_more_at_once_than_run_at_once_all_get_their_own_text() -> None:
    with served(max_running=3) as (_, client):
        prompts = [[3 + i % 30, 4, 5 + i % 11] for i in range(20)]
        body = {"input_ids": prompts, "sampling_params": {**FREE, "max_new_tokens": 30}}
        answers = client.post("/generate", json=body).json()
        assert [answer["output_ids"] for answer in answers] == [said(ids, 30) for ids in prompts]


def test_a_full_queue_is_503() -> None:
    with served(max_running=1, max_queued=1) as (_, client):
        body = {"input_ids": [PROMPT, PROMPT, PROMPT], "sampling_params": {**FREE, "max_new_tokens": 30}}
        answer = client.post("/generate", json=body)
        assert answer.status_code == 503
        assert "no room" in answer.json()["error"]["message"]
        while client.post("/flush_cache").status_code == 409:
            threading.Event().wait(0.005)
        assert generate(client, max_new_tokens=4)["output_ids"] == said(PROMPT, 4)
