"""The embedded backend: builds the engine, serves it over HTTP, and stops both in order.

Knows ``embedded.assembly`` and the listener. Importing this module imports none of the packages that may be missing.
"""

import importlib.util
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import UnavailableError
from jetspec_engine.records import Availability, ServeEvent

if TYPE_CHECKING:
    from jetspec_engine.protocol import CompletionEngine

NEEDED_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "fastapi", "uvicorn")


class EmbeddedBackend:
    """The bundled PyTorch engine behind FastAPI and uvicorn."""

    name = "embedded"

    def availability(self, config: ServeConfig) -> Availability:
        """Say whether the packages are here; imports none of them."""
        del config
        missing = tuple(name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None)
        hint = "pip install 'jetspec[embedded]'" if missing else ""
        return Availability(is_available=not missing, missing=missing, hint=hint)

    def serve(self, config: ServeConfig, on_event: Callable[[ServeEvent], None]) -> None:
        """Bind the port, pull what is missing, load the models, listen, say "ready", and block until SIGINT or SIGTERM.

        Args:
            config: what to serve; port 0 picks a free port.
            on_event: receives progress, ready (message: the URL; info), log and stopped events, on the calling thread
                or the event loop's.

        Raises:
            UnavailableError: a package is missing, or the device or the port cannot be had: found before a model
                is pulled.
            ArtifactError: the models cannot be loaded.
        """
        found = self.availability(config)
        if not found.is_available:
            raise UnavailableError(f"missing packages: {', '.join(found.missing)}", hint=found.hint)
        from jetspec_engine.embedded.assembly import build_engine
        from jetspec_engine.server.listener import bind

        with bind(config.host, config.port) as bound:
            engine = build_engine(config, lambda progress: on_event(ServeEvent.of(progress)))
            try:
                serve_engine(engine, config, bound, on_event)
            finally:
                engine.close()
        on_event(ServeEvent(kind="stopped", message="stopped"))


def serve_engine(
    engine: "CompletionEngine", config: ServeConfig, bound: socket.socket, on_event: Callable[[ServeEvent], None]
) -> None:
    """Serve a running engine on a bound socket and block until told to stop; requests still running are aborted."""
    from jetspec_engine.server.app import create_app
    from jetspec_engine.server.listener import Listener, url_of

    app = create_app(engine, config)
    context = app.state.context
    url = url_of(bound)
    Listener(
        app,
        bound,
        on_started=lambda: on_event(ServeEvent(kind="ready", message=url, info=context.info())),
        on_stopping=context.bridge.abort_all,
        on_log=lambda line: on_event(ServeEvent(kind="log", message=line)),
    ).run_until_stopped()
