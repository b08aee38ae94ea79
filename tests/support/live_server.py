"""A real HTTP server over any engine, in a thread of the test process, on a free loopback port."""

import threading
from types import TracebackType
from typing import Self

import httpx

from jetspec_engine.config import ServeConfig
from jetspec_engine.protocol import CompletionEngine
from jetspec_engine.server.app import create_app
from jetspec_engine.server.listener import Listener, bind, url_of

START_TIMEOUT_S = 20.0


class LiveServer:
    """Serves an engine while a ``with`` block runs; closes the engine at its end.

    Args:
        engine: what to serve.
        api_key: asked of every request except /health.

    Attributes:
        url: where it listens.
        logs: warnings and tracebacks the server reported; empty after a good test.
    """

    def __init__(self, engine: CompletionEngine, *, api_key: str | None = None) -> None:
        self.engine = engine
        self.logs: list[str] = []
        self._started = threading.Event()
        config = ServeConfig(engine="embedded", target="fake-model", port=0, api_key=api_key)
        self.app = create_app(engine, config)
        self._bound = bind(config.host, config.port)
        self.url = url_of(self._bound)
        self._listener = Listener(
            self.app,
            self._bound,
            on_started=self._started.set,
            on_stopping=self.app.state.context.bridge.abort_all,
            on_log=self.logs.append,
        )
        self._thread = threading.Thread(target=self._listener.run_until_stopped, name="live-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise RuntimeError("the server did not start")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._listener.stop()
        self._thread.join(START_TIMEOUT_S)
        self.engine.close()
        if self._thread.is_alive():
            raise RuntimeError("the server did not stop")

    def client(self, *, api_key: str | None = None) -> httpx.Client:
        """Return a client with this server's base URL; the caller closes it."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        return httpx.Client(base_url=self.url, timeout=30.0, headers=headers, trust_env=False)
