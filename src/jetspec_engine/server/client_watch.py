"""Work that is only worth doing while its client listens.

Knows ASGI's ``receive`` and nothing else of the server.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


async def run_while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Await work, cancelling it when the client disconnects.

    Args:
        work: a coroutine that does not read the request itself.
        receive: the request's ASGI channel, its body already read.

    Raises:
        ClientGoneError: the client went away first; work was cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
