"""Every limit that docs/security.md names: size and time of a body, length of a prompt, requests at once, the key."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from jetspec_engine.server import connection, gatekeeping
from support.engine_runs import engine_rig
from support.fake_engine import FakeEngine
from support.live_server import LiveServer

LONG = {"input_ids": [5, 9, 7], "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as made:
        yield made


def test_a_body_that_does_not_arrive_is_408_and_its_connection_is_let_go(monkeypatch):
    monkeypatch.setattr(gatekeeping.BoundBody.__init__, "__defaults__", (0.3,))
    with LiveServer(FakeEngine()) as live, connected(live.url) as slow:
        slow.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        begin = time.monotonic()
        answer = b""
        # The connection is closed after the answer: a client that has not sent its body cannot send another request.
        while part := slow.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.3 s" in answer
        # Seconds of keep-alive come on top.
        assert 0.2 < time.monotonic() - begin < 20
        assert live.logs == []


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_connections_without_a_request_are_let_go(monkeypatch, sent):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.4)
    with LiveServer(FakeEngine()) as live, connected(live.url) as idle:
        begin = time.monotonic()
        for byte in sent:
            idle.sendall(bytes([byte]))
            time.sleep(0.005)
        assert idle.recv(1) == b""
        assert 0.3 < time.monotonic() - begin < 4, "sooner than a kept-alive connection's 5 s"
        assert live.logs == []


def test_a_request_in_time_is_answered_however_late(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    with LiveServer(FakeEngine()) as live, connected(live.url) as kept:
        for _ in range(3):
            kept.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
            time.sleep(0.4)  # of the body
            kept.sendall(b"{}")
            answer = b""
            while not answer.endswith(b"}}"):
                answer += kept.recv(65536)
            assert answer.startswith(b"HTTP/1.1 400 ")
            time.sleep(0.4)  # between two requests


def test_a_slow_answer_is_no_slow_body(monkeypatch):
    monkeypatch.setattr(gatekeeping.BoundBody.__init__, "__defaults__", (0.2,))
    with engine_rig(max_seq_len=256) as rig, LiveServer(rig.engine) as live, live.client() as client:
        verify = rig.target.verify

        def slowly(items):
            time.sleep(0.05)
            return verify(items)

        rig.target.verify = slowly
        begin = time.monotonic()
        answer = client.post("/generate", json={**LONG, "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}})
        assert answer.status_code == 200
        assert len(answer.json()["output_ids"]) == 20
        assert time.monotonic() - begin > 0.2


def test_more_requests_than_may_wait_are_503(monkeypatch):
    with engine_rig(max_seq_len=256, max_running=1, max_queued=2) as rig, LiveServer(rig.engine) as live:
        gate = threading.Event()
        verify = rig.target.verify
        rig.target.verify = lambda items: (gate.wait(10), verify(items))[1]
        codes: list[int] = []

        def ask() -> None:
            with live.client() as client:
                codes.append(client.post("/generate", json=LONG).status_code)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(codes) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        refused = sorted(codes)
        gate.set()
        for thread in threads:
            thread.join()
    assert refused == [503, 503, 503]
    assert sorted(codes) == [200, 200, 200, 503, 503, 503]


def test_a_prompt_beyond_the_context_is_400_and_the_cap_ends_at_the_context():
    with engine_rig(max_seq_len=64) as rig, LiveServer(rig.engine) as live, live.client() as client:
        assert client.post("/generate", json={**LONG, "input_ids": [5] * 65}).status_code == 400
        sampling = {"max_new_tokens": 10**6, "ignore_eos": True}
        answer = client.post("/generate", json={"input_ids": [5] * 10, "sampling_params": sampling})
        assert len(answer.json()["output_ids"]) == 54


@pytest.mark.parametrize("path", ["/generate", "/v1/models", "/metrics", "/jetspec/tree", "/openapi.json", "/nowhere"])
def test_without_the_key_nothing_but_health_answers(path):
    with LiveServer(FakeEngine(), api_key="k3y") as live:
        with httpx.Client(base_url=live.url, trust_env=False) as client:
            assert client.get("/health").status_code == 200
            # A part of the key is not the key, nor is more than it.
            wrong = ("Bearer no", "Bearer", "Bearer k3", "Bearer k3yy", "Bearer 3y", "Bearer K3Y", "Basic k3y", "k3y")
            for headers in ({}, {"X-API-Key": "k3y"}, *({"Authorization": one} for one in wrong)):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401
                assert "k3y" not in answer.text
        with live.client(api_key="k3y") as client:
            assert client.get(path).status_code != 401
