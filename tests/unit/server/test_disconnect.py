"""A client that goes away takes its request with it (case 25): real sockets, closed in the middle."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from support.fake_engine import FakeEngine
from support.live_server import LiveServer

CHAT_BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(round_s=0.002, answer=lambda ids, tree: [ord("a")] * 3000)


@pytest.fixture
def live(engine: FakeEngine) -> Iterator[LiveServer]:
    with LiveServer(engine) as server:
        yield server
        assert server.logs == []


def send_request(live: LiveServer, path: str, body: dict) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def wait_until_idle(engine: FakeEngine, live: LiveServer) -> None:
    for _ in range(2000):
        if engine.counters()["running"] == 0 and engine.submitted and not live.app.state.context.bridge.active:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the request still runs")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3000}}),
        ("/generate", {"text": ["x", "y"], "sampling_params": {"max_new_tokens": 3000}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 3000}),
        ("/v1/chat/completions", CHAT_BODY),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_case_25_client_gone_aborts_its_requests(
    engine: FakeEngine, live: LiveServer, path: str, body: dict, is_streamed: bool
) -> None:
    connection = send_request(live, path, {**body, "stream": is_streamed})
    if is_streamed:
        received = b""
        while received.count(b"data: ") < 3:
            received += connection.recv(4096)
    else:
        while not engine.counters()["running"]:
            threading.Event().wait(0.002)
    connection.close()
    wait_until_idle(engine, live)
    counters = engine.counters()
    assert counters["requests_aborted"] == len(engine.submitted) > 0
    assert counters["requests_finished"] == 0
    assert counters["pages_free"] == counters["pages_total"]
    with live.client() as client:
        assert client.get("/health_generate").status_code == 200


def test_a_hundred_clients_gone_after_three_chunks_leave_nothing(engine: FakeEngine, live: LiveServer) -> None:
    def leave() -> None:
        with send_request(live, "/v1/chat/completions", {**CHAT_BODY, "stream": True}) as connection:
            received = b""
            while received.count(b"data: ") < 3:
                received += connection.recv(4096)

    for _ in range(10):
        threads = [threading.Thread(target=leave) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wait_until_idle(engine, live)
    assert engine.counters()["requests_aborted"] == len(engine.submitted) == 100


def test_a_slow_reader_gets_everything(engine: FakeEngine, live: LiveServer) -> None:
    body = {"prompt": "x", "max_tokens": 3000, "stream": True}
    with send_request(live, "/v1/completions", body) as connection:
        wait_until_idle(engine, live)
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    # Each event travels in an HTTP chunk of its own.
    events = [part.partition(b"\r\n")[0].partition(b"\n\n")[0] for part in received.split(b"data: ")[1:-1]]
    assert len(events) == 1000
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == "a" * 3000
    assert engine.counters()["requests_finished"] == 1


def test_requests_running_at_stop_are_aborted_and_answered() -> None:
    engine = FakeEngine(round_s=0.002, answer=lambda ids, tree: [ord("a")] * 100_000, max_seq_len=2**20)
    results: list[dict] = []
    with LiveServer(engine) as live, live.client() as client:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 100_000}}
        thread = threading.Thread(target=lambda: results.append(client.post("/generate", json=body).json()))
        thread.start()
        while not engine.counters()["running"]:
            threading.Event().wait(0.002)
        live.__exit__()
        thread.join()
    assert results[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.counters()["running"] == 0
