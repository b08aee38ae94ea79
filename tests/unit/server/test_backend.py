"""The embedded backend: availability, the port before the models, readiness, signals, and the order of stopping."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.records import Progress, ServeEvent
from jetspec_engine.server.backend import NEEDED_PACKAGES, EmbeddedBackend
from jetspec_engine.server.listener import bind, url_of
from support.fake_engine import FakeEngine
from support.live_server import LiveServer

TESTS = Path(__file__).parents[2]
CONFIG = ServeConfig(engine="embedded", target="fake-model", port=0)


class Built:
    """Stands in for ``embedded.assembly``."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []

    def build_engine(self, config: ServeConfig, on_progress: Callable[[Progress], None]) -> FakeEngine:
        on_progress(Progress(label="loading", done=1, total=2, unit="tensors"))
        self.engines.append(FakeEngine())
        return self.engines[-1]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    made = Built()
    module = types.ModuleType("jetspec_engine.embedded.assembly")
    module.build_engine = made.build_engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_availability_looks_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EmbeddedBackend().availability(CONFIG).is_available
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "uvicorn") else real(name))
    found = EmbeddedBackend().availability(CONFIG)
    assert not found.is_available
    assert found.missing == ("torch", "uvicorn")
    assert "jetspec[embedded]" in found.hint
    with pytest.raises(UnavailableError, match="torch, uvicorn"):
        EmbeddedBackend().serve(CONFIG, lambda event: None)


def test_the_module_imports_nothing_heavy() -> None:
    code = (
        "import sys; from jetspec_engine.registry import backend; from jetspec_engine.config import ServeConfig;"
        "backend('embedded').availability(ServeConfig());"
        f"print([name for name in {NEEDED_PACKAGES!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_case_28_a_taken_port_is_found_before_any_model_is_loaded(built: Built, taken_port: int) -> None:
    config = ServeConfig(engine="embedded", port=taken_port)
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{taken_port}") as caught:
        EmbeddedBackend().serve(config, lambda event: None)
    assert "--port" in caught.value.hint
    assert built.engines == []


def test_a_port_lost_while_loading_is_the_same_error(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    stolen: list[socket.socket] = []

    def steal(config: ServeConfig, on_progress: Callable[[Progress], None]) -> FakeEngine:
        thief = bind("127.0.0.1", config.port)
        thief.listen()
        stolen.append(thief)
        return built.build_engine(config, on_progress)

    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(sys.modules["jetspec_engine.embedded.assembly"], "build_engine", steal)
    with pytest.raises(UnavailableError, match=str(port)):
        EmbeddedBackend().serve(ServeConfig(engine="embedded", port=port), lambda event: None)
    stolen[0].close()
    assert not built.engines[0]._thread.is_alive()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1", "a" * 300, "..."])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(UnavailableError, match=re.escape(host)):
        bind(host, 0)


def test_ipv6_urls_are_bracketed() -> None:
    try:
        bound = bind("::1", 0)
    except UnavailableError:
        pytest.skip("no IPv6 loopback here")
    with bound:
        assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


def test_a_model_that_cannot_be_loaded_frees_the_port(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: ServeConfig, on_progress: Callable[[Progress], None]) -> FakeEngine:
        raise ArtifactError("config.json: block_size: 0, expected 2..256")

    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(sys.modules["jetspec_engine.embedded.assembly"], "build_engine", fail)
    with pytest.raises(ArtifactError):
        EmbeddedBackend().serve(ServeConfig(engine="embedded", port=port), lambda event: None)
    bind("127.0.0.1", port).close()


SERVE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import types
from support.fake_engine import FakeEngine
from support.live_server import LiveServer
from jetspec_engine.config import ServeConfig
from jetspec_engine.records import Progress
from jetspec_engine.server.backend import EmbeddedBackend

module = types.ModuleType("jetspec_engine.embedded.assembly")
class Engine(FakeEngine):
    def close(self):
        print(json.dumps(["closed"]), flush=True)
        super().close()
def build_engine(config, on_progress):
    on_progress(Progress(label="loading", done=1, total=2))
    return Engine(round_s=0.002, answer=lambda ids, tree: [97] * 10**6, max_seq_len=2**21)
module.build_engine = build_engine
sys.modules[module.__name__] = module
config = ServeConfig(engine="embedded", target="fake-model", port=0)
EmbeddedBackend().serve(config, lambda e: print(json.dumps([e.kind, e.message, dict(e.info)]), flush=True))
print(json.dumps(["returned"]), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_gracefully_with_requests_running(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVE, str(TESTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert '"loading"' in process.stdout.readline()
        kind, url, info = json.loads(process.stdout.readline())
        assert kind == "ready"
        assert info["engine"] == "fake"
        results: list[httpx.Response] = []
        body = {"text": "x", "sampling_params": {"max_new_tokens": 10**6}}
        ask = threading.Thread(target=lambda: results.append(httpx.post(f"{url}/generate", json=body, timeout=30)))
        ask.start()
        while "jetspec_requests_running 1" not in httpx.get(f"{url}/metrics").text:
            threading.Event().wait(0.01)
        process.send_signal(number)
        rest = process.stdout.read().splitlines()
        ask.join()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    assert results[0].json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert rest == ['["closed"]', '["stopped", "stopped", {}]', '["returned"]']


def test_events_of_one_life(built: Built) -> None:
    events: list[ServeEvent] = []
    ready = threading.Event()

    def on_event(event: ServeEvent) -> None:
        events.append(event)
        if event.kind == "ready":
            ready.set()

    from jetspec_engine.server import backend, listener

    started: list[listener.Listener] = []
    real = listener.Listener.run_until_stopped

    def run(self: listener.Listener) -> None:
        started.append(self)
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener.Listener, "run_until_stopped", run)
        thread = threading.Thread(target=backend.EmbeddedBackend().serve, args=(CONFIG, on_event))
        thread.start()
        assert ready.wait(20)
        assert httpx.get(f"{events[1].message}/health").status_code == 200
        assert httpx.get(f"{events[1].message}/get_server_info").json()["jetspec"] == events[1].info
        started[0].stop()
        thread.join(20)
    assert [event.kind for event in events] == ["progress", "ready", "stopped"]
    assert not built.engines[0]._thread.is_alive()


def test_R22_the_environment_is_neither_read_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "not a number")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("HF_TOKEN", "mine")
    before = dict(os.environ)
    with LiveServer(FakeEngine()) as live, live.client() as client:
        assert client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}}).status_code == 200
    assert dict(os.environ) == before
