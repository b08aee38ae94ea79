"""Runs an engine in this process and tells its caller what happens: lines for people, or one JSON object a line.

Knows engines through the registry only.
"""

import os
import signal
import sys
import threading
from dataclasses import asdict

from jetspec_cli import console
from jetspec_cli.serving.describe import describe
from jetspec_cli.serving.startup import choose_engine, ensure_target, refuse_missing_models
from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.records import Progress, ServeEvent


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
    reporter = Reporter(as_json=as_json)
    config = choose_engine(config)
    if can_pull:
        with console.bar(config.target, None) as bar:
            ensure_target(config, lambda progress: reporter.on_pull(progress, bar))
    else:
        refuse_missing_models(config)
    registry.backend(config.engine).serve(config, reporter.on_event)


def stop_with_stdin() -> None:
    """Stop this process when its standard input closes, that is, when the parent that holds the other end is gone."""

    def wait() -> None:
        # Read past Python's buffer: a lock held on it at exit would be fatal.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


class Reporter:
    """Turns the events of a starting and running server into output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last_percent = -1

    def on_pull(self, progress: Progress, bar: console.Bar) -> None:
        """Tell how far a download or a conversion is: by a bar on a terminal, else once per 10 %."""
        if console.is_live() and not self._as_json:
            bar.update(label=progress.label, done=progress.done, total=progress.total or None)
            return
        percent = 100 * progress.done // progress.total if progress.total else 0
        if percent // 10 != self._last_percent // 10:
            self.on_event(ServeEvent(kind="progress", message=f"{progress.label}: {percent} %"))
        self._last_percent = percent

    def on_event(self, event: ServeEvent) -> None:
        """Tell of one event."""
        url = str(event.info.get("url") or event.message)
        if self._as_json:
            document = {**asdict(event), "info": dict(event.info)}
            console.data_json({**document, "url": url} if event.kind == "ready" else document, indent=None)
        elif event.kind == "ready":
            console.data("\n".join(describe(event.info, url)))
            console.talk("ready; Ctrl-C stops the server")
        elif event.message:
            console.talk(event.message)
