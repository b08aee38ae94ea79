"""SGLang's ``meta_info`` for an answer, with this engine's own counters beside it.

Knows records and answers. Two counters differ in meaning from SGLang's: here the prefill's forward counts as a round
(``spec_verify_ct`` is the number of rounds), and ``spec_accept_histogram[i]`` counts rounds that emitted i tokens,
bonus included. ``spec_correct_drafts_histogram`` has SGLang's index, the bonus left out.
Source: the field names of SGLang 0.5.17's responses.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from jetspec_engine.records import FinishReason, PositionScore, RequestStats
from jetspec_engine.server.answers import Answer
from jetspec_engine.server.context import ServerContext
from jetspec_engine.server.wire import finite

LogprobEntry = tuple[float | None, int, str | None]


def native_finish(finish: FinishReason | None, num_tokens: int) -> dict[str, Any] | None:
    """Return SGLang's finish_reason, None while the request runs."""
    if finish is None:
        return None
    if finish.kind == "length":
        return {"type": "length", "length": num_tokens}
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": finish.kind, "message": finish.message or f"the request ended with {finish.kind}"}


def progress_meta(answer: Answer) -> dict[str, Any]:
    """Return what is known of an answer at any time."""
    return {
        "id": answer.request_id,
        "finish_reason": native_finish(answer.finish, len(answer.token_ids)),
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": len(answer.token_ids),
    }


def final_meta(answer: Answer) -> dict[str, Any]:
    """Return the meta_info of a finished answer; times in seconds."""
    stats = answer.stats or RequestStats()
    return {
        **progress_meta(answer),
        "cached_tokens": stats.num_cached_tokens,
        "e2e_latency": answer.elapsed_s,
        "queue_time": stats.queue_s,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
        "phase_s": dict(stats.phase_s),
        "round_s": summarise(stats.round_s),
        **spec_meta(stats),
    }


def spec_meta(stats: RequestStats) -> dict[str, Any]:
    """Return the counters of speculative decoding."""
    histogram = list(stats.accept_histogram)
    return {
        "spec_verify_ct": stats.num_rounds,
        "spec_accept_length": stats.accept_length,
        "spec_expected_accept_length": finite(stats.expected_accept_length),
        "spec_accept_rate": stats.accept_rate,
        "spec_accept_histogram": histogram,
        "spec_correct_drafts_histogram": [sum(histogram[:2]), *histogram[2:]],
        "spec_num_correct_drafts": stats.num_correct_drafts,
        "spec_num_proposed_drafts": stats.num_proposed_drafts,
    }


def summarise(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return how many rounds were timed, and their median, least and greatest time; None without any."""
    if not seconds:
        return None
    return {"num": len(seconds), "median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


class NativeLogprobs:
    """Log-probabilities in SGLang's shape: ``[logprob, token id, text or null]``.

    Args:
        context: the server, for the tokens' texts.
        num_top: candidates a position; 0 for none.
        has_text: whether tokens are spelled.
    """

    def __init__(self, context: ServerContext, *, num_top: int, has_text: bool) -> None:
        self._context = context
        self._num_top = num_top
        self._has_text = has_text

    def of_output(self, answer: Answer) -> dict[str, Any]:
        """Return the emitted tokens' part of meta_info."""
        meta: dict[str, Any] = {
            "output_token_logprobs": [self._entry(one.token_id, one.logprob) for one in answer.logprobs]
        }
        if self._num_top:
            meta["output_top_logprobs"] = [
                [self._entry(token, logprob) for token, logprob in one.top[: self._num_top]] for one in answer.logprobs
            ]
        return meta

    def of_input(self, ids: Sequence[int], start: int, scores: Sequence[PositionScore]) -> dict[str, Any]:
        """Return the prompt's part of meta_info, from position ``start`` on; position 0 has no logprob."""
        head: list[Any] = [(None, ids[0], self._text(ids[0]))] if start == 0 else []
        meta: dict[str, Any] = {
            "input_token_logprobs": head + [self._entry(one.token_id, one.logprob) for one in scores]
        }
        if self._num_top:
            tops = [[self._entry(token, logprob) for token, _, logprob in one.top[: self._num_top]] for one in scores]
            meta["input_top_logprobs"] = ([None] if start == 0 else []) + tops
        return meta

    def _entry(self, token_id: int, logprob: float) -> LogprobEntry:
        return finite(logprob), token_id, self._text(token_id)

    def _text(self, token_id: int) -> str | None:
        return self._context.spell(token_id) if self._has_text else None
