"""``jetspec serve`` in front of a scripted engine: what it starts, says and refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from jetspec_cli import console
from jetspec_engine import registry
from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.records import Availability, Progress, ServeEvent

INFO = {
    "engine": "embedded", "version": "9", "target": "t", "head": "h", "drafter": "head", "dtype": "bfloat16",
    "device": "cpu", "attention": "reference", "tree": TreeConfig(width=4, budget=32).to_mapping(), "draft_depth": 15,
    "max_tree": {"width": 8, "budget": 128}, "max_seq_len": 2048, "is_graph": False,
}  # fmt: skip


class Backend:
    """An engine that is ready at once and stops at once."""

    name = "embedded"
    is_available = True
    served: ClassVar[list[ServeConfig]] = []

    def availability(self, config):
        missing = () if self.is_available else ("package torch",)
        return Availability(is_available=self.is_available, missing=missing, hint="pip install 'jetspec[embedded]'")

    def serve(self, config, on_event):
        self.served.append(config)
        for done in range(100):
            on_event(ServeEvent.of(Progress(label="pulling t", done=done, total=200)))
        on_event(ServeEvent.of(Progress(label="loading", done=0, total=0)))
        on_event(ServeEvent(kind="ready", message="http://127.0.0.1:1", info=INFO))
        on_event(ServeEvent(kind="stopped", message="stopped"))


class Sglang(Backend):
    name = "sglang"


class Missing(Backend):
    is_available = False


class TakenPort(Backend):
    def serve(self, config, on_event):
        raise UnavailableError(f"port {config.port}: taken", hint="jetspec serve --port 0")


class Slow(Backend):
    """An engine that loads until it is stopped."""

    def serve(self, config, on_event):
        console.data("loading")
        time.sleep(60)


class Store:
    """A catalogue of one target that is not here yet; pulling it is the engine's to do."""

    def list(self, cache_dir):
        return [{"name": ServeConfig.target, "is_present": False}]

    def inspect(self, target, head, cache_dir):
        raise ArtifactError(f"model {target}: not in the cache")


@pytest.fixture
def engines(monkeypatch, tmp_path):
    """Register scripted engines and a scripted store; return a function that replaces one engine."""
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Backend, "served", [])
    monkeypatch.setattr(registry, "MODEL_STORE", f"{__name__}:Store")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])

    def use(**names: str) -> None:
        for engine, name in names.items():
            monkeypatch.setitem(registry.BACKENDS, engine, f"{__name__}:{name}")

    use(embedded="Backend", sglang="Missing")
    return use


def test_R01_it_says_what_runs(jetspec, engines):
    result = jetspec("serve", "--tree-width", "8", "--budget", "16")
    assert result.code == 0
    assert dict(line.split(maxsplit=1) for line in result.out.splitlines() if not line.startswith("switchable")) == {
        "engine": "embedded 9", "target": "t", "head": "h", "dtype": "bfloat16 cpu", "attention": "reference",
        "graphs": "off", "tree": "W4 B32 of depth 15 at most", "context": "2048", "url": "http://127.0.0.1:1",
    }  # fmt: skip
    assert "switchable up to  W8 B128" in result.out.splitlines()
    lines = [f"pulling t: {percent} %" for percent in (0, 10, 20, 30, 40)]
    assert result.err.splitlines()[:6] == [*lines, "loading"]
    (config,) = Backend.served
    assert config.tree == TreeConfig(width=8, budget=16)
    assert config.engine == "embedded"


def test_with_json_every_event_is_one_line_and_ready_has_the_url(jetspec, engines):
    result = jetspec("serve", "--format", "json")
    events = [json.loads(line) for line in result.out.splitlines()]
    assert [event["kind"] for event in events] == [*["progress"] * 6, "ready", "stopped"]
    assert events[1] == {"kind": "progress", "message": "pulling t: 10 %", "info": {}}
    assert (events[6]["url"], events[6]["info"]) == ("http://127.0.0.1:1", INFO)


def test_R01_auto_takes_sglang_where_it_can_run(jetspec, engines):
    engines(sglang="Sglang")
    jetspec("serve")
    assert Backend.served[0].engine == "sglang"


def test_R01_engine_decides(jetspec, engines):
    engines(sglang="Sglang")
    jetspec("serve", "--engine", "embedded")
    assert Backend.served[0].engine == "embedded"


def test_sglang_options_go_only_to_sglang(jetspec, engines):
    engines(sglang="Sglang")
    assert jetspec("serve", "--", "--tp-size", "2").code == 0
    assert Backend.served[0].extra_args == ("--tp-size", "2")
    assert jetspec("serve", "--engine", "embedded", "--", "--tp-size", "2").code == 2


def test_an_engine_that_cannot_run_is_3_and_says_what_to_install(jetspec, engines):
    engines(embedded="Missing")
    result = jetspec("serve", "--engine", "embedded")
    assert result.code == 3
    assert result.err == (
        "error: engine embedded: cannot run here: package torch\n\nhint: pip install 'jetspec[embedded]'\n"
    )


def test_the_real_sglang_entry_is_3_where_sglang_is_missing(jetspec):
    if registry.backend("sglang").availability(ServeConfig()).is_available:
        pytest.skip("sglang can run here")
    result = jetspec("serve", "--engine", "sglang")
    assert result.code == 3
    assert result.err.count("\n") == 3
    assert "jetspec[sglang]" in result.err


def test_a_taken_port_is_3(jetspec, engines):
    engines(embedded="TakenPort")
    result = jetspec("serve", "--port", "8000")
    # Nothing comes before the engine's own word: a target is pulled only after the port was had.
    assert (result.code, result.err.splitlines()[0]) == (3, "error: port 8000: taken")


@pytest.mark.parametrize("words", [(), ("--drafter", "right")])
def test_without_pulling_a_model_that_is_not_here_is_refused_by_the_store(jetspec, engines, words):
    refused = jetspec("serve", "--no-pull", *words)
    assert (refused.code, Backend.served) == (4, [])
    assert "not in the cache" in refused.err


def test_case_32_the_key_comes_from_the_environment_and_is_not_shown(jetspec, engines, monkeypatch):
    monkeypatch.setenv("JETSPEC_API_KEY", "s3cret")
    result = jetspec("serve")
    assert Backend.served[0].api_key == "s3cret"
    assert "s3cret" not in result.out + result.err
    jetspec("serve", "--api-key", "other")
    assert Backend.served[1].api_key == "other"


@contextmanager
def loading_server(*words):
    """Run ``jetspec serve`` on the slow engine as a process of its own, and wait until it loads."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from jetspec_engine import registry; "
        f"registry.BACKENDS['embedded'] = '{__name__}:Slow'; from jetspec_cli.__main__ import start; start()"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", script, "serve", "--engine", "embedded", *words]
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout.readline() == "loading\n"
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_case_27_a_server_stopped_while_it_loads_is_interrupted(number):
    with loading_server() as process:
        process.send_signal(number)
        assert process.wait(10) == 130
        assert process.stderr.read() == "error: interrupted\n"


def test_a_server_told_to_stop_with_its_standard_input_does():
    with loading_server("--stop-with-stdin") as process:
        process.stdin.close()
        assert process.wait(10) == 130


def test_nothing_is_written_to_the_callers_environment(jetspec, engines, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setenv("HF_TOKEN", "token")
    before = dict(os.environ)
    jetspec("serve")
    assert dict(os.environ) == before
