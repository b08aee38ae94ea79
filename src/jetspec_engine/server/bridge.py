"""From the engine's thread to asyncio: submit requests, await their events, abort what nobody waits for.

Knows ``protocol.CompletionEngine`` and the event loop; nothing of HTTP. Nothing polls: an event wakes its reader
through ``call_soon_threadsafe``. Events stay one a round however slow the reader is; they wait in a queue that can
hold no more than the requests' own tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.protocol import CompletionEngine
from jetspec_engine.records import GenerateRequest, StepEvent


class EngineBridge:
    """The one place where the server submits to and aborts in the engine; used from the event loop only.

    Attributes:
        active: ids of requests the engine has accepted and not finished; for each, the id of the whole it is part of.
    """

    def __init__(self, engine: CompletionEngine) -> None:
        self.engine = engine
        self.active: dict[str, str] = {}

    def start(self, requests: Sequence[GenerateRequest], *, whole: str | None = None) -> "Generation":
        """Submit requests that belong together, all or none.

        Args:
            requests: with ids of their own.
            whole: an id by which all of them can be aborted together; None for their own ids alone.

        Raises:
            RequestError: one of them can never run, or its id is in use.
            BusyError: the queue is full.
        """
        generation = Generation(self, requests)
        try:
            for index, request in enumerate(requests):
                try:
                    self._submit(request, whole or request.request_id, generation.receive)
                except RequestError as error:
                    if len(requests) == 1:
                        raise
                    raise RequestError(f"{error.what}, in prompt {index}", hint=error.hint) from error
                generation.unfinished.add(request.request_id)
        except BaseException:
            generation.close()
            raise
        return generation

    def abort(self, request_id: str) -> list[str]:
        """Abort a request, or every part of a batch that was given this id; return the ids that were running."""
        parts = [name for name, whole in self.active.items() if request_id in (name, whole)]
        return [name for name in parts if self.engine.abort(name)]

    def abort_all(self) -> None:
        """Abort everything that runs or waits."""
        self.engine.abort("")

    def _submit(self, request: GenerateRequest, whole: str, receive: Callable[[StepEvent], None]) -> None:
        loop = asyncio.get_running_loop()
        request_id = request.request_id
        if request_id in self.active:
            raise RequestError(f"rid: {request_id!r} is already running", hint="give each request its own rid")

        def on_loop(event: StepEvent) -> None:
            if event.finish is not None:
                self.active.pop(request_id, None)
            receive(event)

        def on_event(event: StepEvent) -> None:
            try:
                loop.call_soon_threadsafe(on_loop, event)
            except RuntimeError:
                # The loop closed while the engine was still winding down: nobody is left to tell.
                return

        self.engine.submit(request, on_event)
        self.active[request_id] = whole


class Generation:
    """Requests submitted together, and their events. Close it when nobody will read on.

    Attributes:
        unfinished: ids of those the engine accepted whose last event has not been read.
    """

    def __init__(self, bridge: EngineBridge, requests: Sequence[GenerateRequest]) -> None:
        self._bridge = bridge
        self._index_of = {request.request_id: index for index, request in enumerate(requests)}
        self._events: asyncio.Queue[StepEvent] = asyncio.Queue()
        self.unfinished: set[str] = set()

    def receive(self, event: StepEvent) -> None:
        """Take one event from the engine (on the event loop)."""
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[tuple[int, StepEvent]]:
        """Yield (index of the request, event) until every request has finished.

        Raises:
            EngineError: the engine ended a request with an error; its partial output is lost to the caller.
        """
        while self.unfinished:
            event = await self._events.get()
            if event.finish is not None:
                self.unfinished.discard(event.request_id)
                if event.finish.kind == "error":
                    raise EngineError(event.finish.message or "the engine failed")
            yield self._index_of[event.request_id], event

    def close(self) -> None:
        """Abort what is still running. Safe to call twice."""
        for request_id in self.unfinished & self._bridge.active.keys():
            self._bridge.engine.abort(request_id)
        self.unfinished.clear()
