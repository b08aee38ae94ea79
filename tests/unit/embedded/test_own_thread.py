"""Work apart: a thread that ends with it, and an assembly that leaves the calling thread without a pool of workers."""

import _thread
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.embedded import assembly
from jetspec_engine.embedded.own_thread import run_apart
from support.tiny_pairs import make_tiny_pair


def test_work_runs_on_a_thread_that_has_ended_when_it_returns() -> None:
    worker = run_apart(threading.current_thread)
    assert worker is not threading.current_thread()
    assert not worker.is_alive()


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="lost"):
        run_apart(lambda: {}["lost"])


def test_models_are_loaded_on_threads_that_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[threading.Thread] = []

    def watched(work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            loaders.append(threading.current_thread())
            return work(*args, **kwargs)

        return run

    for name in ("load_head", "load_models"):
        monkeypatch.setattr(assembly, name, watched(getattr(assembly, name)))
    config = ServeConfig(**make_tiny_pair(tmp_path), device="cpu")
    assembly.build_engine(config, lambda progress: None).close()
    assert len(loaders) == 2
    assert not any(thread is threading.current_thread() or thread.is_alive() for thread in loaders)


def test_an_interrupted_caller_ends_the_work_before_it_leaves() -> None:
    news: list[str] = []

    def work() -> None:
        try:
            _thread.interrupt_main()
            while True:
                time.sleep(0.01)
        finally:
            news.append("ended")

    with pytest.raises(KeyboardInterrupt):
        run_apart(work)
    assert news == ["ended"]


def test_a_process_interrupted_while_loading_ends_quietly() -> None:
    # Without the above, Python's end meets a thread inside C++ and the process aborts.
    program = """
import sys, torch
from jetspec_engine.embedded.own_thread import run_apart
def work():
    print("loading", flush=True)
    while True:
        torch.rand(300, 300) @ torch.rand(300, 300)
try:
    run_apart(work)
except KeyboardInterrupt:
    sys.exit(130)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        complaints = child.communicate(timeout=60)[1]
    assert (child.returncode, complaints) == (130, "")
