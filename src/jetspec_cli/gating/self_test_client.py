"""The gate's client for an engine in this process: the same calls, without a server between.

Knows nothing of mutants. It can ask for more than the gate does: stops, log-probabilities, several requests at once.
"""

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import Score, ServerClient
from jetspec_cli.serving.generation import Generation
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import EngineError, RequestError, UnavailableError
from jetspec_engine.records import GenerateRequest, SamplingParams, StepEvent, TokenLogprob

PATIENCE_S = 20.0


@dataclass
class Answer:
    """One request's events as they come; ``done`` is set by the last one."""

    events: list[StepEvent] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: StepEvent) -> None:
        self.events.append(event)
        if event.finish is not None:
            self.done.set()

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Of every emitted token."""
        return [one for event in self.events for one in event.logprobs]

    def generation(self) -> Generation:
        """Wait for the end and return what the gate compares.

        Raises:
            EngineError: the request failed, or never ended.
        """
        if not self.done.wait(PATIENCE_S):
            raise EngineError(f"the request has not ended after {PATIENCE_S:.0f} s")
        last = self.events[-1]
        if last.finish is None or last.stats is None or last.finish.kind in ("abort", "error"):
            raise EngineError(f"the request failed: {last.finish.message if last.finish else 'no reason'}")
        return Generation(
            text="".join(event.text for event in self.events),
            token_ids=tuple(token for event in self.events for token in event.token_ids),
            finish=last.finish.kind,
            num_prompt_tokens=last.stats.num_prompt_tokens,
            num_cached_tokens=last.stats.num_cached_tokens,
            num_emitted_tokens=last.stats.num_emitted_tokens,
            num_rounds=last.stats.num_rounds,
            accept_histogram=tuple(last.stats.accept_histogram),
        )


class EngineClient(ServerClient):
    """A client that needs no server.

    Args:
        running: the engine's, from ``registry.self_test().open``.
        pieces: each token id's letter.
    """

    def __init__(self, running: Any, pieces: str) -> None:
        self.url, self.kind, self.can_flush = "in process", "jetspec", True
        self.info: Mapping[str, Any] = running.engine.info()
        self._running, self._engine, self._pieces = running, running.engine, pieces
        self._names = itertools.count()

    def close(self) -> None:
        """Nothing to close: who opened the engine closes it."""

    def is_alive(self) -> bool:
        """Say yes: a failed request is the request's own failure."""
        return True

    def flush_cache(self) -> bool:
        """Drop every cached prefix."""
        self._engine.flush_cache()
        return True

    def submit(self, ids: Sequence[int], *, top_k: int | None = None, **sampling: Any) -> Answer:
        """Queue a request with ``SamplingParams`` as keywords. Raises EngineError when it is refused."""
        answer = Answer()
        request = GenerateRequest(
            request_id=f"self-test-{next(self._names)}",
            input_ids=tuple(ids),
            sampling=SamplingParams(**sampling),
            logprobs_top_k=top_k,
        )
        try:
            self._engine.submit(request, answer)
        except RequestError as error:
            raise EngineError(error.what) from error
        return answer

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Generation:
        """Decode greedily. Raises EngineError."""
        return self.submit(prompt.input_ids or (), max_new_tokens=max_new_tokens).generation()

    def tokens_per_round(self, prompt: Prompt, max_new_tokens: int) -> tuple[tuple[int, ...], list[int] | None]:
        """Decode and return the ids and how many tokens came a round. Raises EngineError."""
        answer = self.submit(prompt.input_ids or (), max_new_tokens=max_new_tokens)
        ids = answer.generation().token_ids or ()
        counts = [len(event.token_ids) for event in answer.events if event.token_ids]
        # The first event may hold the prefill's token and the first round's together.
        return ids, [1, counts[0] - 1, *counts[1:]] if counts and counts[0] > 1 else counts

    def render(self, prompt: Prompt) -> tuple[int, ...] | None:
        """Return the prompt's ids."""
        return prompt.input_ids

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str | None:  # noqa: ARG002
        """Return the letters of ids."""
        return "".join(self._pieces[token] for token in ids)

    def score(self, input_ids: Sequence[int], start: int, top_k: int) -> tuple[str, list[Score]] | None:
        """Teacher-force ids. Raises EngineError."""
        try:
            scores = self._engine.score(tuple(input_ids), start, top_k)
        except RequestError as error:
            raise EngineError(error.what) from error
        return self._running.dtype, [
            Score(position=s.position, token_id=s.token_id, logit=s.logit, logprob=s.logprob, top=s.top) for s in scores
        ]

    def examine(self, question: Mapping[str, Any]) -> bytes | None:
        """Have a prompt decoded again under observation. Raises EngineError."""
        try:
            evidence: bytes = self._running.examine(question)
        except (RequestError, UnavailableError) as error:
            raise EngineError(error.what) from error
        return evidence

    def tree(self) -> TreeConfig:
        """Return the tree that runs now."""
        return TreeConfig.from_mapping(self._engine.info()["tree"])

    def set_tree(self, tree: TreeConfig) -> TreeConfig:
        """Switch the tree."""
        switched: TreeConfig = self._engine.set_tree(tree)
        return switched

    def counters(self) -> Mapping[str, float]:
        """Return the engine's totals and gauges."""
        found: Mapping[str, float] = self._engine.counters()
        return found
