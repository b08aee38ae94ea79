"""Runs an engine in this process and tells its caller what happens: lines for people, or one JSON object a line.

Knows engines through the registry only.
"""

import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Self

from jetspec_cli import console, environment
from jetspec_cli.meter import Meter
from jetspec_cli.serving.describe import describe
from jetspec_cli.serving.startup import choose_engine, refuse_missing_models
from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.records import ServeEvent


def host(config: ServeConfig, *, can_pull: bool, as_json: bool, is_child: bool) -> None:
    """Load the models, listen, and block until told to stop (Ctrl-C, SIGTERM).

    Args:
        config: what to serve.
        can_pull: download a missing target.
        as_json: one JSON object a line for every event.
        is_child: stop when standard input closes.

    Raises:
        UnavailableError: the engine cannot run here, or the port is taken.
        ArtifactError: a model cannot be loaded.
        EngineError: the engine died.
    """
    if is_child:
        stop_with_stdin()
    config = within_share(choose_engine(config))
    if not can_pull:
        refuse_missing_models(config)
    with Reporter(as_json=as_json) as reporter:
        registry.backend(config.engine).serve(config, reporter.on_event)


def within_share(config: ServeConfig) -> ServeConfig:
    """Leave no more threads than a container's share of the cores; torch counts the machine's, and they take turns."""
    limit = environment.thread_limit()
    return config if config.num_threads is not None or limit is None else replace(config, num_threads=limit)


def stop_with_stdin() -> None:
    """Stop this process when its standard input closes, that is, when the parent that holds the other end is gone."""

    def wait() -> None:
        # Read past Python's buffer: a lock held on it at exit would be fatal.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


class Reporter:
    """Turns the events of a starting and running server into output. Use it in a ``with`` block."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._meter = Meter(lambda line: self._tell(ServeEvent(kind="progress", message=line)), can_draw=not as_json)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._meter.clear()

    def on_event(self, event: ServeEvent) -> None:
        """Tell of one event; of a long job's reports only what is worth a line or moves a bar."""
        if event.progress is not None:
            self._meter.show(event.progress.label, event.progress.done, event.progress.total)
            return
        self._meter.clear()
        self._tell(event)

    def _tell(self, event: ServeEvent) -> None:
        url = str(event.info.get("url") or event.message)
        if self._as_json:
            document = {"kind": event.kind, "message": event.message, "info": dict(event.info)}
            console.data_json({**document, "url": url} if event.kind == "ready" else document, indent=None)
        elif event.kind == "ready":
            console.data("\n".join(describe(event.info, url)))
            console.talk("ready; Ctrl-C stops the server")
        elif event.message:
            console.talk(event.message)
