"""Which requests run: admission in order of arrival, a region each, and what becomes of the region afterwards.

Runs on the engine's thread, except ``waiting``, to which any thread may append. Knows nothing of rounds or events.
"""

import logging
from collections import deque
from collections.abc import Iterator

from jetspec_engine.embedded.prefix_cache import Placement, PrefixCache
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.round import Parts
from jetspec_engine.errors import EngineError
from jetspec_engine.records import FinishReason

logger = logging.getLogger(__name__)


class Scheduler:
    """Holds the waiting and the running requests.

    Args:
        cache: lends regions.
        max_running: most requests that hold a region at once.

    Attributes:
        waiting: requests without a region, oldest first.
        running: requests with one, oldest first; some still in their prompt.
    """

    def __init__(self, cache: PrefixCache, max_running: int) -> None:
        self.cache = cache
        self.waiting: deque[ActiveRequest] = deque()
        self.running: list[ActiveRequest] = []
        self._max_running = max_running

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def requests(self) -> list[ActiveRequest]:
        """Return all requests, running ones first."""
        return [*self.running, *self.waiting]

    def prefilling(self) -> ActiveRequest | None:
        """Return the oldest running request whose prompt is not done."""
        return next((request for request in self._unfinished() if not request.is_prefilled), None)

    def decoding(self) -> list[ActiveRequest]:
        """Return the running requests that take part in the next round."""
        return [request for request in self._unfinished() if request.is_prefilled]

    def admit(self, parts: Parts) -> None:
        """Give waiting requests a region, in order, until one does not fit."""
        while self.waiting and len(self.running) < self._max_running:
            request = self.waiting[0]
            try:
                is_placed = request.finish is not None or self._start(request, parts)
            except Exception as error:
                request.fail(error)
                is_placed = True
            if not is_placed:
                return
            self.waiting.popleft()
            request.admit()
            self.running.append(request)

    def take_finished(self) -> list[ActiveRequest]:
        """Remove the requests that have ended, wherever they are, and settle their regions."""
        finished = [request for request in self.requests() if request.finish is not None]
        for request in finished:
            (self.running if request in self.running else self.waiting).remove(request)
            self._settle(request)
        return finished

    def _unfinished(self) -> Iterator[ActiveRequest]:
        return (request for request in self.running if request.finish is None)

    def _start(self, request: ActiveRequest, parts: Parts) -> bool:
        """Place a request and open its draft session; False when it has to wait for room."""
        if request.rules.cap == 0:
            request.end(FinishReason(kind="length"))
            return True
        capacity = slots_needed(request, parts)
        prompt = request.ids
        placement = self.cache.place(prompt, capacity, is_drafting=parts.is_drafting)
        if placement is None:
            if not self.running:
                raise EngineError(f"cache: no room for {capacity} slots though nothing runs")
            return False
        self._occupy(request, placement, parts)
        return True

    def _occupy(self, request: ActiveRequest, placement: Placement, parts: Parts) -> None:
        # The region belongs to the request before anything can fail, so that settling gives it back.
        request.region = placement.region
        request.is_drafting = parts.is_drafting
        if request.is_drafting:
            request.session = parts.drafter.open(request.request, placement.region)
            if placement.num_cached:
                parts.drafter.adopt_prefix(request.session, request.ids[: placement.num_cached])
        request.length = placement.num_cached
        request.draft_length = placement.draft_length
        request.stats.num_cached_tokens = placement.num_cached

    def _settle(self, request: ActiveRequest) -> None:
        """Close the session and give the region back; what fails here fails the request, never the engine."""
        region, request.region = request.region, None
        session, request.session = request.session, None
        try:
            if session is not None:
                session.close()
        except Exception as error:
            logger.exception("request %s: its draft session did not close", request.request_id)
            request.finish = FinishReason(kind="error", message=f"{type(error).__name__}: {error}")
        if region is None:
            return
        if request.finish is not None and request.finish.kind == "error":
            self.cache.free(region)
        else:
            self.cache.insert(request.ids[: request.length], region, request.draft_length)


def slots_needed(request: ActiveRequest, parts: Parts) -> int:
    """Return the slots a request needs: prompt, answer, and the rows of one round beyond them.

    The head's block has D + 1 rows even when the tree has fewer.
    """
    rows = max(parts.budget, parts.drafter.depth + 1) if parts.is_drafting else 1
    return request.num_prompt + request.rules.cap + rows
