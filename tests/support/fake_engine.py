"""A small deterministic ``protocol.CompletionEngine`` without a model, for tests of whatever stands in front of one.

Its tokens are UTF-8 bytes and a few special tokens. What it answers is a function of the prompt and the tree, so a
test can plant a fault for one tree only. It decodes on its own thread, several tokens a round, as the real one does.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import BusyError, ConfigError, RequestError
from jetspec_engine.records import (
    FinishReason,
    GenerateRequest,
    PositionScore,
    RequestStats,
    StepEvent,
    TokenLogprob,
)
from support.byte_tokenizer import IM_END, ByteTokenizer

STORY = "The 🦊 said: 你好，世界! Then it counted 1 2 3 4 5 6 7 8 9 and slept — ça va? "

AnswerFunction = Callable[[tuple[int, ...], TreeConfig], list[int]]


def tell_story(prompt: tuple[int, ...], _: TreeConfig) -> list[int]:
    """Answer with the story, begun at a word the prompt decides, over and over; it never ends by itself."""
    words = STORY.split(" ")
    start = sum(prompt) % len(words)
    return list((" ".join(words[start:] + words[:start]) * 8).encode())


@dataclass
class _Running:
    """A request and how far it has come."""

    request: GenerateRequest
    on_event: Callable[[StepEvent], None]
    token_ids: list[int]
    text: str
    finish: FinishReason
    num_sent: int = 0
    sent_text: str = ""
    is_aborted: bool = False
    rounds: list[int] = field(default_factory=list)


class FakeEngine:
    """See the module.

    Args:
        answer: what it says to a prompt under a tree; ends at ``IM_END`` or its own length.
        tokens_per_round: tokens each round emits.
        round_s: how long a round takes, in seconds.
        fail_at: emitted tokens after which a request ends with an error; None for never.
        max_queued: requests at once before ``BusyError``.
        max_seq_len: context length.

    Attributes:
        hold: while cleared no round runs; set at first.
        submitted: every request it accepted.
        aborted_ids: ids ``abort`` was called with.
    """

    def __init__(
        self,
        *,
        answer: AnswerFunction = tell_story,
        tokens_per_round: int = 3,
        round_s: float = 0.0,
        fail_at: int | None = None,
        max_queued: int = 64,
        max_seq_len: int = 4096,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self.hold = threading.Event()
        self.hold.set()
        self.submitted: list[GenerateRequest] = []
        self.aborted_ids: list[str] = []
        self.num_flushes = 0
        self._answer = answer
        self._tokens_per_round = tokens_per_round
        self._round_s = round_s
        self._fail_at = fail_at
        self._max_queued = max_queued
        self._max_seq_len = max_seq_len
        self._tree = TreeConfig()
        self._totals = dict.fromkeys(
            ("requests_finished", "requests_aborted", "requests_failed", "prompt_tokens", "emitted_tokens", "rounds"), 0
        )
        self._running: dict[str, _Running] = {}
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="fake-engine")
        self._thread.start()

    def submit(self, request: GenerateRequest, on_event: Callable[[StepEvent], None]) -> None:
        """Queue a request."""
        if len(request.input_ids) >= self._max_seq_len:
            raise RequestError(f"input_ids: {len(request.input_ids)} tokens, expected less than {self._max_seq_len}")
        for token in (*request.input_ids, *request.sampling.stop_token_ids):
            if not 0 <= token < self.tokenizer.vocab_size:
                raise RequestError(f"input_ids: {token}, expected less than {self.tokenizer.vocab_size}")
        with self._wake:
            if len(self._running) >= self._max_queued:
                raise BusyError("queue: full", hint="retry later")
            self._running[request.request_id] = self._plan(request, on_event)
            self.submitted.append(request)
            self._wake.notify()

    def abort(self, request_id: str) -> bool:
        """Abort a request, or all for the empty id."""
        with self._wake:
            self.aborted_ids.append(request_id)
            chosen = [one for name, one in self._running.items() if request_id in ("", name)]
            for one in chosen:
                one.is_aborted = True
            self._wake.notify()
        return bool(chosen)

    def flush_cache(self) -> None:
        """Count a flush."""
        self._check_idle()
        self.num_flushes += 1

    def set_tree(self, tree: TreeConfig) -> TreeConfig:
        """Switch the tree."""
        self._check_idle()
        self._tree = TreeConfig.from_mapping({**tree.to_mapping(), "budget": tree.resolve_budget(15)})
        return self._tree

    def record(self, request: GenerateRequest, width: int) -> Any:
        raise ConfigError("drafter: none in a fake engine, so there is nothing to record")

    def profile(self, request: GenerateRequest, num_rounds: int) -> Any:
        raise RequestError("num_rounds: a fake engine has no rounds to profile")

    def score(self, input_ids: Sequence[int], start: int, top_k: int) -> list[PositionScore]:
        """Score positions with made-up numbers; the id at a position is always the best."""
        return [
            PositionScore(
                position=position,
                token_id=input_ids[position],
                logit=float(position),
                logprob=-0.5,
                top=tuple((token, 1.0 - token, -0.5 - token) for token in range(top_k)),
            )
            for position in range(start, len(input_ids))
        ]

    def info(self) -> Mapping[str, Any]:
        """Say what runs."""
        return {
            "engine": "fake",
            "version": "0",
            "dtype": "float32",
            "device": "cpu",
            "page_size": 16,
            "max_seq_len": self._max_seq_len,
            "draft_depth": 15,
            "tree": self._tree.to_mapping(),
            "max_tree": {"width": 8, "budget": 128},
        }

    def counters(self) -> Mapping[str, float]:
        """Return totals and gauges."""
        with self._wake:
            running, totals = len(self._running), dict(self._totals)
        return {**totals, "running": running, "waiting": 0, "pages_total": 64, "pages_free": 64 - running}

    def close(self) -> None:
        """Stop."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self.hold.set()
        self._thread.join()

    def _check_idle(self) -> None:
        with self._wake:
            if self._running:
                raise BusyError(f"engine: {len(self._running)} requests are running, expected none")

    def _plan(self, request: GenerateRequest, on_event: Callable[[StepEvent], None]) -> _Running:
        """Decide the whole answer, as stops and caps cut it."""
        sampling = request.sampling
        cap = min(sampling.max_new_tokens, self._max_seq_len - len(request.input_ids))
        ids = self._answer(request.input_ids, self._tree)[:cap]
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {IM_END})

        def text_of(count: int) -> str:
            return self.tokenizer.decode(ids[:count], skip_special_tokens=sampling.skip_special_tokens)

        for count in range(sampling.min_new_tokens + 1, len(ids) + 1):
            if ids[count - 1] in ends:
                finish = FinishReason(kind="stop", matched=ids[count - 1])
                return _Running(request, on_event, ids[:count], text_of(count - 1), finish)
            for stop in sampling.stop:
                text = text_of(count)
                if stop in text:
                    end = text.index(stop) + (len(stop) if sampling.no_stop_trim else 0)
                    return _Running(request, on_event, ids[:count], text[:end], FinishReason(kind="stop", matched=stop))
        return _Running(request, on_event, ids, text_of(len(ids)), FinishReason(kind="length"))

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._is_closing and not self._running:
                    self._wake.wait()
                if self._is_closing:
                    for one in self._running.values():
                        one.is_aborted = True
                batch = list(self._running.values())
            if not batch and self._is_closing:
                return
            if not self.hold.wait(0.01):
                batch = [one for one in batch if one.is_aborted]
            for one in batch:
                self._round(one)
            if self._round_s:
                threading.Event().wait(self._round_s)

    def _round(self, one: _Running) -> None:
        """Emit one round of one request."""
        end = min(one.num_sent + self._tokens_per_round, len(one.token_ids))
        finish = one.finish if end == len(one.token_ids) else None
        if self._fail_at is not None and end >= self._fail_at:
            finish = FinishReason(kind="error", message="the target's logits are not finite")
        if one.is_aborted:
            end, finish = one.num_sent, FinishReason(kind="abort", message="aborted")
        new = one.token_ids[one.num_sent : end]
        one.num_sent = end
        one.rounds.append(len(new))
        self._totals["rounds"] += 1
        self._totals["emitted_tokens"] += len(new)
        stats = None
        if finish is not None:
            stats = self._finish(one, finish)
        one.on_event(
            StepEvent(
                request_id=one.request.request_id,
                token_ids=tuple(new),
                text=self._new_text(one, is_last=finish is not None),
                logprobs=self._logprobs(one.request, new),
                finish=finish,
                stats=stats,
            )
        )

    def _new_text(self, one: _Running, *, is_last: bool) -> str:
        """Return the text that became certain: no part of a character, nothing that may begin a stop string."""
        if is_last and one.num_sent == len(one.token_ids):
            shown = one.text
        else:
            ids = one.token_ids[: one.num_sent]
            so_far = self.tokenizer.decode(ids, skip_special_tokens=one.request.sampling.skip_special_tokens)
            shown = one.text[: len(so_far.rstrip("\ufffd"))]
        new, one.sent_text = shown[len(one.sent_text) :], shown
        return new

    @staticmethod
    def _logprobs(request: GenerateRequest, ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        top_k = request.logprobs_top_k
        if top_k is None:
            return ()
        return tuple(
            TokenLogprob(
                token_id=token,
                logprob=-0.25,
                top=tuple(((token + rank) % 259, -0.25 - rank if rank < 3 else float("-inf")) for rank in range(top_k)),
            )
            for token in ids
        )

    def _finish(self, one: _Running, finish: FinishReason) -> RequestStats:
        """Take a request off the books and return its counters."""
        kind = {"abort": "aborted", "error": "failed"}.get(finish.kind, "finished")
        with self._wake:
            del self._running[one.request.request_id]
            self._totals[f"requests_{kind}"] += 1
            self._totals["prompt_tokens"] += len(one.request.input_ids)
        histogram = [0] * (self._tokens_per_round + 1)
        for emitted in one.rounds:
            histogram[emitted] += 1
        return RequestStats(
            num_prompt_tokens=len(one.request.input_ids),
            num_cached_tokens=len(one.request.input_ids) // 2,
            num_emitted_tokens=one.num_sent,
            num_rounds=len(one.rounds),
            accept_histogram=histogram,
            num_proposed_drafts=15 * len(one.rounds),
            num_correct_drafts=one.num_sent - len(one.rounds) + histogram[0],
            phase_s={"prefill": 0.001, "verify": 0.002},
            round_s=[0.003, 0.001, 0.002],
            prefill_s=0.001,
            decode_s=0.006,
        )
