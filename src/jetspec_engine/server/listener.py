"""Binds a port and runs an ASGI application on it until told to stop.

Knows uvicorn, sockets and signals; nothing of engines or routes. Never prints: what uvicorn has to report goes to a
callback.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from jetspec_engine.errors import UnavailableError
from jetspec_engine.server.connection import Connection

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5


def bind(host: str, port: int) -> socket.socket:
    """Bind a TCP socket without listening yet; port 0 picks a free one.

    Raises:
        UnavailableError: the port is taken, or the address is not ours.
    """
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    # A name that no host can have is a UnicodeError.
    except (OSError, UnicodeError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise UnavailableError(f"host: {host!r}: {reason}", hint="try --host 127.0.0.1") from failure
    try:
        # Lets a restart bind while old connections linger; a second listener is still refused.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as failure:
        bound.close()
        raise _taken(where, failure) from failure
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL a bound socket answers under."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _taken(where: str, failure: OSError) -> UnavailableError:
    return UnavailableError(
        f"port: cannot listen on {where}: {failure.strerror or failure}",
        hint="choose another with --port, or --port 0 for any free one",
    )


class Listener(uvicorn.Server):
    """A uvicorn server without its own logs and signal handling.

    Args:
        app: what to serve.
        bound: a socket from ``bind``; owned and closed by the listener.
        on_started: called on the event loop once connections are accepted.
        on_stopping: called on the event loop before open connections are waited for.
        on_log: receives warnings and errors, one line or traceback each.
    """

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        *,
        on_started: Callable[[], None],
        on_stopping: Callable[[], None],
        on_log: Callable[[str], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # Given here so that uvicorn does not look for them in the environment.
                workers=1,
                proxy_headers=False,
                forwarded_allow_ips="",
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._bound = bound
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._on_log = on_log

    def run_until_stopped(self) -> None:
        """Serve and block. Call from the main thread to have SIGINT and SIGTERM stop it gracefully.

        Raises:
            UnavailableError: somebody else began to listen on the port in the meantime.
        """
        with self._bound, _forwarded_logs(self._on_log):
            where = url_of(self._bound).removeprefix("http://")
            try:
                asyncio.run(self.serve(sockets=[self._bound]))
            except OSError as failure:
                raise _taken(where, failure) from failure

    def stop(self) -> None:
        """Stop gracefully. May be called from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections (called by uvicorn)."""
        await super().startup(sockets=sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what runs, then close the connections (called by uvicorn)."""
        self._on_stopping()
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM while serving (called by uvicorn).

        uvicorn's own version raises them again afterwards, which would end the process before the engine is closed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        # The second signal does not wait for connections any more.
        self.force_exit = self.should_exit
        self.should_exit = True


# asyncio warns of every write to a client that has gone; uvicorn and the engine warn of what matters.
_LOGGER_LEVELS = {"uvicorn.error": logging.WARNING, "jetspec_engine": logging.WARNING, "asyncio": logging.ERROR}


# Without a free file descriptor asyncio complains of every attempt to accept, thousands of times a second.
REPEATS_AFTER_S = 60.0


class _LogForwarder(logging.Handler):
    """Hands formatted records to a callback; of equal ones in a row, one a minute."""

    def __init__(self, level: int, on_log: Callable[[str], None]) -> None:
        super().__init__(level)
        self._on_log = on_log
        self._last = ("", 0.0)
        self._num_repeats = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one record, or count it as a repeat."""
        said, since = self._last
        saying = f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}"
        if saying == said and record.created - since < REPEATS_AFTER_S:
            self._num_repeats += 1
            return
        if self._num_repeats:
            self._on_log(f"({self._num_repeats} times more)")
        self._last, self._num_repeats = (saying, record.created), 0
        self._on_log(self.format(record))


@contextlib.contextmanager
def _forwarded_logs(on_log: Callable[[str], None]) -> Iterator[None]:
    """Send what the libraries and the engine log to a callback instead of stderr while serving."""
    with contextlib.ExitStack() as undo:
        for name, level in _LOGGER_LEVELS.items():
            logger, handler = logging.getLogger(name), _LogForwarder(level, on_log)
            undo.callback(setattr, logger, "propagate", logger.propagate)
            undo.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            logger.propagate = False
        yield
