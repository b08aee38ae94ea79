"""Health, what runs, cache flush, abort, metrics, and JetSpec's own routes."""

import threading
import time

import httpx
import pytest

from support.fake_engine import FakeEngine
from support.live_server import LiveServer


@pytest.fixture
def idle() -> FakeEngine:
    return FakeEngine()


def in_background(client: httpx.Client, body: dict, results: list) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(client.post("/generate", json=body)))
    thread.start()
    return thread


def wait_for_submission(engine: FakeEngine, count: int) -> None:
    for _ in range(1000):
        if len(engine.submitted) >= count:
            return
        threading.Event().wait(0.005)
    raise AssertionError("nothing was submitted")


def test_health_generate_really_decodes(server: LiveServer, client: httpx.Client) -> None:
    before = server.engine.counters()["emitted_tokens"]
    assert client.get("/health").status_code == 200
    assert server.engine.counters()["emitted_tokens"] == before
    assert client.get("/health_generate").status_code == 200
    assert server.engine.counters()["emitted_tokens"] == before + 1


def test_health_generate_is_503_when_the_engine_cannot() -> None:
    with LiveServer(FakeEngine(fail_at=1)) as live, live.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health_generate").status_code == 503
    for engine in (FakeEngine(max_queued=0), FakeEngine(answer=lambda ids, tree: [])):
        with LiveServer(engine) as live, live.client() as client:
            assert client.get("/health_generate").status_code == 503


@pytest.mark.parametrize("path", ["/get_server_info", "/server_info"])
def test_server_info_says_what_runs_and_no_secret(idle: FakeEngine, path: str) -> None:
    with LiveServer(idle, api_key="s3cret") as live, live.client(api_key="s3cret") as client:
        client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 30}})
        answer = client.get(path)
        assert "s3cret" not in answer.text
        info = answer.json()
        assert info["jetspec"]["engine"] == "fake"
        assert info["jetspec"]["tree"]["width"] == 8
        assert "absent temperature means 0" in info["jetspec"]["sampling"]
        assert info["speculative_algorithm"] == "JETSPEC"
        assert info["internal_states"] == [{"avg_spec_accept_length": 3.0}]


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info"])
def test_model_info(client: httpx.Client, path: str) -> None:
    info = client.get(path).json()
    assert info["model_path"] == info["tokenizer_path"] == "fake-model"
    assert info["is_generation"] is True


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flush_cache(server: LiveServer, client: httpx.Client, method: str) -> None:
    before = server.engine.num_flushes
    assert client.request(method, "/flush_cache").status_code == 200
    assert server.engine.num_flushes == before + 1


def test_R17_flush_and_tree_need_an_idle_server(idle: FakeEngine) -> None:
    with LiveServer(idle) as live, live.client() as client:
        idle.hold.clear()
        results: list[httpx.Response] = []
        thread = in_background(client, {"text": "x", "sampling_params": {"max_new_tokens": 3}}, results)
        wait_for_submission(idle, 1)
        for path, body in (("/flush_cache", None), ("/jetspec/tree", {"width": 2})):
            busy = client.post(path, json=body)
            assert busy.status_code == 409
            assert "running" in busy.json()["error"]["message"]
        idle.hold.set()
        thread.join()
        assert results[0].status_code == 200
        assert client.post("/flush_cache").status_code == 200
        assert client.post("/jetspec/tree", json={"width": 2}).json()["width"] == 2


def test_R17_the_tree_switches_and_is_told_resolved(client: httpx.Client) -> None:
    switched = client.post("/jetspec/tree", json={"rule": "top2gap", "width": 4, "budget": None, "beta": 2})
    assert switched.json() == {
        "rule": "top2gap", "width": 4, "budget": 16, "beta": 2, "g0": 1.0, "keep_spine": False,
    }  # fmt: skip
    assert client.get("/jetspec/tree").json() == switched.json()
    # A body describes a whole tree: what it leaves out has its default, not its last value.
    assert client.post("/jetspec/tree", json={"beta": 0.5}).json()["rule"] == "top2gap"
    assert client.post("/jetspec/tree", json={}).json()["rule"] == "best_first"


def test_unknown_tree_keys_name_the_allowed_ones_and_the_nearest(client: httpx.Client) -> None:
    message = client.post("/jetspec/tree", json={"widht": 4}).json()["error"]["message"]
    assert "rule, width, budget, beta, g0, keep_spine" in message
    assert "did you mean width?" in message


def test_score(client: httpx.Client) -> None:
    answer = client.post("/jetspec/score", json={"input_ids": [5, 6, 7], "start": 2, "top_k": 2}).json()
    assert answer["dtype"] == "float32"
    assert answer["positions"] == [
        {"position": 2, "token_id": 7, "logit": 2.0, "logprob": -0.5, "top": [[0, 1.0, -0.5], [1, 0.0, -1.5]]}
    ]


def test_render_gives_the_ids_that_a_request_decodes_from(server: LiveServer, client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = client.post("/jetspec/render", json={"messages": messages}).json()
    client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert tuple(rendered["input_ids"]) == server.engine.submitted[-1].input_ids
    assert client.post("/jetspec/detokenize", json={"ids": rendered["input_ids"]}).json()["text"] == rendered["text"]
    assert client.post("/jetspec/render", json={"text": "é"}).json() == {"text": "é", "input_ids": [0xC3, 0xA9]}


def test_abort_one_of_two(idle: FakeEngine) -> None:
    with LiveServer(idle) as live, live.client() as client:
        idle.hold.clear()
        results: dict[str, list[httpx.Response]] = {"a": [], "b": []}
        threads = [in_background(client, {"text": "x", "rid": name}, results[name]) for name in results]
        wait_for_submission(idle, 2)
        duplicate = client.post("/generate", json={"text": "x", "rid": "a"})
        assert duplicate.status_code == 400
        assert "already running" in duplicate.json()["error"]["message"]
        assert client.post("/abort_request", json={"rid": "a"}).json() == {"aborted": ["a"]}
        assert client.post("/abort_request", json={"rid": "unknown"}).json() == {"aborted": []}
        idle.hold.set()
        for thread in threads:
            thread.join()
        assert results["a"][0].json()["meta_info"]["finish_reason"] == {"type": "abort", "message": "aborted"}
        assert results["b"][0].json()["meta_info"]["finish_reason"]["type"] == "length"
        # The id is free again.
        assert client.post("/generate", json={"text": "x", "rid": "a"}).status_code == 200


def test_abort_a_batch_by_its_shared_id_and_abort_all(idle: FakeEngine) -> None:
    with LiveServer(idle) as live, live.client() as client:
        for body, aborted in (({"rid": "batch"}, ["batch_0", "batch_1"]), ({"abort_all": True}, ["all_0", "all_1"])):
            idle.hold.clear()
            count = len(idle.submitted)
            results: list[httpx.Response] = []
            name = aborted[0].removesuffix("_0")
            thread = in_background(client, {"text": ["x", "y"], "rid": name}, results)
            wait_for_submission(idle, count + 2)
            assert client.post("/abort_request", json=body).json() == {"aborted": aborted}
            thread.join()
            kinds = [one["meta_info"]["finish_reason"]["type"] for one in results[0].json()]
            assert kinds == ["abort", "abort"]
            idle.hold.set()


def test_a_batch_that_does_not_fit_leaves_nothing_running() -> None:
    engine = FakeEngine(max_queued=2)
    with LiveServer(engine) as live, live.client() as client:
        engine.hold.clear()
        assert client.post("/generate", json={"text": ["a", "b", "c"]}).status_code == 503
        engine.hold.set()
        # The engine aborts at its next round, on its own thread.
        deadline = time.monotonic() + 20
        while engine.counters()["requests_aborted"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert client.post("/generate", json={"text": ["a", "b"]}).status_code == 200
        assert engine.counters()["requests_aborted"] == 2


def test_metrics_are_prometheus_text(idle: FakeEngine) -> None:
    with LiveServer(idle) as live, live.client() as client:
        client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 4}})
        client.get("/nothing")
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
        assert values["jetspec_emitted_tokens_total"] == "4"
        assert values["jetspec_requests_finished_total"] == "1"
        assert values["jetspec_requests_running"] == "0"
        assert values["jetspec_pages_free"] == "64"
        assert values['jetspec_http_requests_total{code="200"}'] == "1"
        assert values['jetspec_http_requests_total{code="404"}'] == "1"
        described = {line.split(" ")[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
        assert {name.partition("{")[0] for name in values} == described


def test_the_openapi_document_types_every_body(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["info"]["title"] == "JetSpec"
    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/jetspec/score", "/jetspec/tree"):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert "$ref" in schema or schema["title"] == "Tree"
        assert document["paths"][path]["post"]["summary"]
