"""ASGI layers around the routes: count answers, answer bugs, ask for the key, bound the body.

They know requests as bytes and headers; nothing of engines.
"""

import asyncio
import contextlib
import hmac
import logging
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jetspec_engine.server.error_replies import error_reply

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health",)
MIN_BODY_BYTES = 2**21
BODY_BYTES_PER_TOKEN = 32
MAX_DRAINED_BYTES = 2**26
# A body must be here by then: a client that sends a byte a minute would hold its connection for ever.
BODY_TIMEOUT_S = 60.0


def body_limit(max_seq_len: int) -> int:
    """Return the largest body to read, in bytes: room for a full context written as JSON ids, at least 2 MiB."""
    return max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * max_seq_len)


class CountAnswers:
    """Counts answers by status code into ``codes``."""

    def __init__(self, app: ASGIApp, codes: Counter[int]) -> None:
        self.app = app
        self.codes = codes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, count)
        finally:
            self.codes[status] += 1


class AnswerBugs:
    """Answers 500 to an exception that no route expected, and logs it. The connection goes on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        is_started = False

        async def watch(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as failure:
            logger.exception("a bug in the server")
            # Half an answer cannot become another one: the connection has to break.
            if is_started or scope["type"] != "http":
                raise
            await error_reply(500, f"internal error: {type(failure).__name__}")(scope, receive, send)


class RequireKey:
    """Answers 401 unless the request carries ``Authorization: Bearer <key>``; /health stays open."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self.expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(scope):
            await self.app(scope, receive, send)
            return
        reply = error_reply(401, "no valid API key: send 'Authorization: Bearer <key>'", code="invalid_api_key")
        await reply(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, key = value.partition(b" ")
                return kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self.expected)
        return False


class BoundBody:
    """Answers 413 to a body of more than ``limit`` bytes, announced or not, and 408 to one that does not arrive.

    What is left of such a body is read and forgotten first, up to MAX_DRAINED_BYTES: a client that is still sending
    would see a reset connection instead of the answer.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self.app = app
        self.limit = limit
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._announced(scope) > self.limit:
            await self._drain(receive)
            await error_reply(413, self._message())(scope, receive, send)
            return
        size = 0
        is_whole = False
        deadline = asyncio.get_running_loop().time() + self.timeout_s

        async def bounded() -> Message:
            nonlocal size, is_whole
            # Once the body is here, what is awaited is the client's leaving, however late.
            try:
                async with asyncio.timeout_at(None if is_whole else deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self.timeout_s:g} s") from None
            is_whole = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.limit:
                if message.get("more_body"):
                    await self._drain(receive)
                raise HTTPException(413, self._message())
            return message

        await self.app(scope, bounded, send)

    def _message(self) -> str:
        return f"the body is larger than {self.limit} bytes"

    @staticmethod
    def _announced(scope: Scope) -> int:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    async def _drain(self, receive: Receive) -> None:
        """Read the rest of a body and forget it, for as long as a body may take."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                while size <= MAX_DRAINED_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return
