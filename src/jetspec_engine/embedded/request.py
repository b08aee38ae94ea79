"""One request on its way through the engine: its tokens, its text, its counters, and how it ended.

Owned by the engine's thread; only ``is_aborted`` is set from others. Knows nothing of models, trees or scheduling.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jetspec_engine.embedded.stops import EndRules, StopScanner
from jetspec_engine.errors import JetspecError, RequestError
from jetspec_engine.protocol import DraftSession, SlotRegion
from jetspec_engine.records import FinishReason, GenerateRequest, RequestStats, StepEvent, TokenLogprob


class TextStream(Protocol):
    """Turns ids into text as they come; see ``models.detokenizer``."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Append ids and return the text that became certain."""
        ...

    def finish(self) -> str:
        """Return what is left, incomplete UTF-8 as U+FFFD."""
        ...


class ActiveRequest:
    """A submitted request.

    Args:
        request: what was asked.
        on_event: receives the request's events.
        rules: when it ends.
        text: turns its ids into text.

    Attributes:
        ids: prompt and emitted tokens; the last one is the anchor once decoding has begun.
        length: committed tokens, those with state in the region.
        draft_length: leading positions with draft state.
        region: its slots while it runs.
        session: its state inside the drafter, when it drafts.
        is_drafting: whether its rounds draft; fixed when it is admitted.
        finish: why it ended, None while it runs.
        is_aborted: asked to stop.
        stats: its counters.
    """

    def __init__(
        self, request: GenerateRequest, on_event: Callable[[StepEvent], None], rules: EndRules, text: TextStream
    ) -> None:
        self.request = request
        self.on_event = on_event
        self.rules = rules
        self.ids = list(request.input_ids)
        self.num_prompt = len(self.ids)
        self.length = 0
        self.draft_length = 0
        self.region: SlotRegion | None = None
        self.session: DraftSession | None = None
        self.is_drafting = False
        self.finish: FinishReason | None = None
        self.is_aborted = False
        self.stats = RequestStats(num_prompt_tokens=self.num_prompt, accept_histogram=[0, 0])
        self._text = text
        self._scanner = StopScanner(request.sampling.stop, is_trimmed=not request.sampling.no_stop_trim)
        self._new_ids: list[int] = []
        self._new_logprobs: list[TokenLogprob] = []
        self._submitted_at = time.perf_counter()
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None

    @property
    def request_id(self) -> str:
        """The id it was submitted with."""
        return self.request.request_id

    @property
    def anchor(self) -> int:
        """The last emitted token: not committed yet, the root of the next tree."""
        return self.ids[-1]

    @property
    def num_emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self.ids) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens that may still be emitted."""
        return self.rules.cap - self.num_emitted

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt is committed and its first token is out."""
        return len(self.ids) > self.num_prompt

    def num_masked_depths(self) -> int:
        """Return at how many depths, from the root on, the next round must not choose an end id."""
        return max(0, self.rules.min_new_tokens - self.num_emitted)

    def admit(self) -> None:
        """Note that waiting is over."""
        self._admitted_at = time.perf_counter()
        self.stats.queue_s = self._admitted_at - self._submitted_at

    def emit(self, token_id: int) -> None:
        """Append one token to ids and text; sets ``finish`` when the token ends the text."""
        if self._first_token_at is None:
            self._first_token_at = time.perf_counter()
        self.ids.append(token_id)
        self._new_ids.append(token_id)
        self.stats.num_emitted_tokens += 1
        if token_id in self.rules.end_ids:  # before the minimum such ids are masked and never come
            if self.request.sampling.no_stop_trim:
                self._scanner.push(self._text.push((token_id,)), may_match=False)
            self.end(FinishReason(kind="stop", matched=token_id))
            return
        may_match = self.rules.may_end_after(self.num_emitted)
        matched = self._scanner.push(self._text.push((token_id,)), may_match=may_match)
        if matched is not None:
            # What the token holds beyond the stop string is no part of the text.
            self.finish = FinishReason(kind="stop", matched=matched)
        elif self.num_left <= 0:
            self.end(FinishReason(kind="length"))

    def add_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the logprobs of the tokens just emitted."""
        self._new_logprobs.extend(logprobs)

    def count_round(self, num_emitted: int, num_proposed: int, num_correct: int) -> None:
        """Count one target forward and what came of it."""
        stats = self.stats
        stats.num_rounds += 1
        stats.num_proposed_drafts += num_proposed
        stats.num_correct_drafts += num_correct
        if num_emitted >= len(stats.accept_histogram):
            stats.accept_histogram.extend([0] * (num_emitted + 1 - len(stats.accept_histogram)))
        stats.accept_histogram[num_emitted] += 1

    def end(self, reason: FinishReason) -> None:
        """End the request, unless it has ended, and let go of text that was held back."""
        if self.finish is None:
            self.finish = reason
            self._scanner.push(self._text.finish(), may_match=False)
            self._scanner.release()

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        what = error.what if isinstance(error, JetspecError) else f"{type(error).__name__}: {error}"
        self.end(FinishReason(kind="error", message=what))

    def close_stats(self) -> None:
        """Fill in the wall times; called once, when the request has ended."""
        now = time.perf_counter()
        if self._admitted_at is None:
            self.stats.queue_s = now - self._submitted_at
            return
        first = now if self._first_token_at is None else self._first_token_at
        self.stats.prefill_s = first - self._admitted_at
        self.stats.decode_s = now - first

    def take_event(self) -> StepEvent | None:
        """Return what is new since the last event, or None when nothing is."""
        text = self._scanner.take()
        if not self._new_ids and not text and self.finish is None:
            return None
        event = StepEvent(
            request_id=self.request_id,
            token_ids=tuple(self._new_ids),
            text=text,
            logprobs=tuple(self._new_logprobs),
            finish=self.finish,
            stats=self.stats if self.finish is not None else None,
        )
        self._new_ids.clear()
        self._new_logprobs.clear()
        return event


def check_ids(input_ids: Sequence[int], vocab_size: int, max_tokens: int) -> None:
    """Raise RequestError unless there are 1 to ``max_tokens`` ids, all in the vocabulary."""
    if not input_ids:
        raise RequestError("input_ids: empty, expected at least one token")
    if len(input_ids) > max_tokens:
        raise RequestError(
            f"input_ids: {len(input_ids)} tokens, expected at most {max_tokens} in this context",
            hint="shorten the prompt",
        )
    for position, token_id in enumerate(input_ids):
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise RequestError(f"input_ids[{position}]: {token_id!r}, expected a token id in [0, {vocab_size - 1}]")


def check_request(request: GenerateRequest, vocab_size: int, max_seq_len: int) -> None:
    """Raise RequestError when a request can never run: prompt and at least one new token must fit the context."""
    check_ids(request.input_ids, vocab_size, max_seq_len - 1)
    sampling = request.sampling
    if sampling.max_new_tokens < 0:
        raise RequestError(f"max_new_tokens: {sampling.max_new_tokens}, expected at least 0")
    if not 0 <= sampling.min_new_tokens <= sampling.max_new_tokens:
        raise RequestError(
            f"min_new_tokens: {sampling.min_new_tokens}, expected 0..max_new_tokens = {sampling.max_new_tokens}"
        )
    if "" in sampling.stop:
        raise RequestError("stop: an empty string, expected at least one character")
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"stop_token_ids: {token_id}, expected a token id in [0, {vocab_size - 1}]")
    top_k = request.logprobs_top_k
    if top_k is not None and not 0 <= top_k <= vocab_size:
        raise RequestError(f"logprobs_top_k: {top_k}, expected 0..{vocab_size}")
