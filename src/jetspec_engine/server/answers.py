"""What a request has answered so far, gathered from its events.

Knows records and the bridge; nothing of any API's shapes.
"""

import time
from dataclasses import dataclass, field

from starlette.types import Receive

from jetspec_engine.records import FinishReason, RequestStats, StepEvent, TokenLogprob
from jetspec_engine.server.bridge import Generation
from jetspec_engine.server.client_watch import run_while_connected


@dataclass(kw_only=True)
class Answer:
    """The output of one request up to now.

    Attributes:
        request_id: the engine's id of the request.
        num_prompt_tokens: tokens of its prompt.
        finish, stats: None until the last event.
        elapsed_s: seconds from submission to the last event, as this server saw them.
    """

    request_id: str
    num_prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: RequestStats | None = None
    started_at: float = field(default_factory=time.perf_counter)
    elapsed_s: float = 0.0

    def add(self, event: StepEvent) -> None:
        """Append one event."""
        self.token_ids.extend(event.token_ids)
        self.text += event.text
        self.logprobs.extend(event.logprobs)
        if event.finish is not None:
            self.finish, self.stats = event.finish, event.stats
            self.elapsed_s = time.perf_counter() - self.started_at

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; 0 until the request has finished."""
        return self.stats.num_cached_tokens if self.stats is not None else 0


async def gather_answers(generation: Generation, answers: list[Answer], receive: Receive) -> None:
    """Fill the answers with everything the engine says, as long as the client listens.

    Raises:
        ClientGoneError: the client left; its requests were aborted.
        EngineError: the engine failed.
    """

    async def read() -> None:
        async for index, event in generation.events():
            answers[index].add(event)

    try:
        await run_while_connected(read(), receive)
    finally:
        generation.close()
