"""One HTTP connection of the listener, closed when the head of a request does not arrive in time.

uvicorn waits for ever for a first request: idle connections would use up the process's file descriptors, and then
nobody is answered. Knows nothing of requests; bodies have their own limit (``gatekeeping``).
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 60.0


class Connection(H11Protocol):
    """uvicorn's connection with a limit on the time until a request's head is whole."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request (called by asyncio)."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes in (called by asyncio)."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting (called by asyncio)."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Keep one deadline from the first moment without a whole head; single bytes do not move it."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
