"""The child server's life, with a script in SGLang's place."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import EngineError, UnavailableError
from jetspec_engine.sglang_backend import child, hosting, launch
from jetspec_engine.sglang_backend.args import TreeSettings
from jetspec_engine.sglang_backend.child import SglangServer

FAKE = str(Path(__file__).with_name("fake_sglang.py"))
SETTINGS = launch.settings_of(ServeConfig())


def info_of(settings=SETTINGS, **changes):
    states = [{"_jetspec": settings.to_mapping()}]
    return json.dumps({"speculative_algorithm": "JETSPEC", "version": "0.5.17", "internal_states": states, **changes})


def server(behaviour, info="{}", **options):
    port = hosting.free_port("127.0.0.1", 0)
    command = [sys.executable, FAKE, str(port), behaviour, info]
    return SglangServer(command, f"http://127.0.0.1:{port}", **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(child, "POLL_S", 0.02)
    monkeypatch.setattr(child, "STOP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(hosting, "WATCH_S", 0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_starts_proves_the_plugin_and_stops():
    lines = []
    with server("serves", info_of(), on_line=lines.append) as running:
        assert running.wait_until_healthy()
        assert running.prove_plugin(SETTINGS)["version"] == "0.5.17"
        running.raise_if_ended()
    assert lines == ["Load weight begin"]  # what matters is forwarded, chatter is not
    with pytest.raises(EngineError, match="killed by signal 15"):
        running.raise_if_ended()


@pytest.mark.parametrize(
    ("info", "fact"),
    [
        (info_of(speculative_algorithm="DFLASH"), "runs 'DFLASH', expected JETSPEC: the plugin is not active"),
        (info_of(speculative_algorithm=None), "runs None"),
        (info_of(internal_states=[]), "the plugin is not active"),
        (info_of(internal_states=[{}]), "a scheduler has the tree settings None"),
        (info_of(TreeSettings(max_width=9)), "a scheduler has the tree settings"),
        ("[]", "not what sglang answers"),
        ("nonsense", "not what sglang answers"),
    ],
)
def test_a_server_without_our_plugin_is_found_out(info, fact):
    with server("serves", info) as running:
        running.wait_until_healthy()
        with pytest.raises(EngineError) as caught:
            running.prove_plugin(SETTINGS)
    assert fact in caught.value.what


@pytest.mark.parametrize(
    ("behaviour", "fact"),
    [
        ("dies", "sglang: exited with code 1: ValueError: no kernel for this card"),
        ("killed", "sglang: was killed by signal 9: "),
    ],
)
def test_a_server_that_dies_gives_its_reason_in_one_line(behaviour, fact):
    with server(behaviour) as running, pytest.raises(EngineError) as caught:
        running.wait_until_healthy()
    assert caught.value.what.startswith(fact)
    assert "\n" not in caught.value.what


def test_a_server_that_says_nothing_is_given_up():
    with server("silent", quiet_timeout_s=0.3) as running, pytest.raises(EngineError, match="said nothing for 0 s"):
        running.wait_until_healthy()


def test_a_server_that_cannot_start_is_an_engine_error():
    with pytest.raises(EngineError, match="cannot be started"), SglangServer(["no-such-program"], "http://127.0.0.1:1"):
        pass


def test_waiting_ends_when_told_to_stop():
    with server("silent") as running:
        assert not running.wait_until_healthy(lambda: True)


def test_a_stubborn_server_and_its_workers_are_ended():
    lines = []
    with server("workers", on_line=lines.append) as running:
        running.wait_until_healthy()
        worker = int(lines[-1].split()[-1])
        assert is_alive(worker)
    deadline = time.monotonic() + 5  # the kernel ends a killed process when it gets to it
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(worker)
    with server("stubborn") as running:
        running.wait_until_healthy()
    with pytest.raises(EngineError, match="killed by signal 9"):
        running.raise_if_ended()


STARTER = """
import sys, time
from jetspec_engine.sglang_backend.child import SglangServer
with SglangServer(sys.argv[1:], "http://127.0.0.1:1") as server:
    print(server._process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_killing_us_stops_the_server():
    port = str(hosting.free_port("127.0.0.1", 0))
    command = [sys.executable, "-c", STARTER, sys.executable, FAKE, port, "serves"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pid = int(starter.stdout.readline())
        assert is_alive(pid)
        starter.kill()
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_the_key_is_sent_and_kept_off_the_command_line():
    with server("key=s3cret", info_of(), api_key="s3cret") as running:
        running.wait_until_healthy()
        running.prove_plugin(SETTINGS)
    with hosting.api_key_words('a"b: #c') as words:
        assert words[0] == "--config"
        path = Path(words[1])
        assert 'a"b' not in " ".join(words)
        assert path.stat().st_mode & 0o077 == 0
        assert json.loads(path.read_text()) == {"api-key": 'a"b: #c'}
    assert not path.exists()
    with hosting.api_key_words(None) as words:
        assert words == []


def host(behaviour, events, info=None):
    port = hosting.free_port("127.0.0.1", 0)
    command = [sys.executable, FAKE, str(port), behaviour, info or info_of()]
    hosting.host_server(command, ServeConfig(), port, events.append)


def test_hosting_says_ready_and_stops_on_SIGTERM():
    events = []

    def stop_when_ready():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not any(event.kind == "ready" for event in events):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop_when_ready)
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(KeyboardInterrupt):
        stopper.start()
        host("serves", events)
    stopper.join()
    ready = next(event for event in events if event.kind == "ready")
    assert (ready.info["engine"], ready.info["version"]) == ("sglang", "0.5.17")
    assert ready.info["tree"] == ServeConfig().tree.to_mapping()
    assert events[-1].kind == "stopped"
    assert signal.getsignal(signal.SIGTERM) == before


def test_hosting_told_to_stop_while_the_server_starts_is_interrupted():
    stopper = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    events = []
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        host("silent", events)
    stopper.join()
    assert [event.kind for event in events if event.kind != "log"] == []


def test_hosting_ends_with_the_servers_own_reason():
    events = []
    with pytest.raises(EngineError, match="RuntimeError: CUDA error: an illegal memory access"):
        host("ends", events)
    assert [event.kind for event in events if event.kind != "log"] == ["ready"]


def test_a_taken_port_is_found_before_anything_starts():
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(UnavailableError, match="port: cannot listen on"):
            hosting.free_port("127.0.0.1", holder.getsockname()[1])
