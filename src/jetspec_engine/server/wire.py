"""Bytes that leave the server: JSON replies and server-sent events.

Knows nothing of engines or routes. Every document is finite JSON: a float that is not finite travels as null.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from jetspec_engine.server.client_watch import ClientGoneError, run_while_connected

DONE = b"data: [DONE]\n\n"


def encode_json(document: Any) -> bytes:
    """Return compact UTF-8 JSON; a lone surrogate becomes its escape.

    Raises:
        ValueError: a float is not finite (callers pass such floats through ``finite``).
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # "backslashreplace" spells a lone surrogate \udXXX, which inside a JSON string is the escape for it.
    return text.encode("utf-8", "backslashreplace")


def encode_event(document: Any) -> bytes:
    """Return one server-sent event that carries a JSON document."""
    return b"data: " + encode_json(document) + b"\n\n"


def finite(value: float) -> float | None:
    """Return value, or None where JSON has no number for it (nan and the infinities)."""
    return value if math.isfinite(value) else None


class JsonReply(Response):
    """A response of one JSON document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the document."""
        return encode_json(content)


class EventStream(StreamingResponse):
    """Server-sent events that stop as soon as the client is gone.

    Args:
        events: encoded events, in order.
        on_close: called exactly once when the stream ends for any reason, also when it never started.
    """

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        headers: Mapping[str, str] = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self.on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events (ASGI)."""
        del scope
        try:
            await run_while_connected(self.stream_response(send), receive)
        except ClientGoneError:
            pass
        finally:
            self.on_close()
