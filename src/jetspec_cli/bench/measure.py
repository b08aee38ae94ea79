"""One timed request: streamed, and checked as strictly as an unstreamed one, once it is over.

Times are wall seconds seen by this client. Knows nothing of what is compared with what.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jetspec_cli.bench.receiving import NATIVE, Received, piece_of, receive
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.generation import Generation, from_native, usage_of
from jetspec_cli.serving.transport import parse_event, shaped
from jetspec_engine.errors import EngineError


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One finished request.

    Attributes:
        generation: what came.
        started_s: when it was sent, on this process's clock.
        ttft_s: until the first token; None when none came.
        e2e_s: until the end of the stream.
        round_s: num, median, min, max of a round's time, prefill left out; None where it is not known.
        num_proposed_drafts, num_correct_drafts: as the server counts; None when it does not.
        phase_s: seconds by phase, as the server says.
    """

    generation: Generation
    started_s: float
    ttft_s: float | None
    e2e_s: float
    round_s: Mapping[str, float] | None = None
    num_proposed_drafts: int | None = None
    num_correct_drafts: int | None = None
    phase_s: Mapping[str, float] | None = None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, from token counts; None below two tokens."""
        count = self.generation.num_emitted_tokens
        if self.ttft_s is None or count is None or count < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (count - 1)

    def to_mapping(self) -> dict[str, Any]:
        """Return what a row keeps: counts and times, a digest instead of the tokens."""
        one = self.generation
        content = one.text if one.token_ids is None else ",".join(map(str, one.token_ids))
        return {
            "finish": one.finish,
            "num_prompt_tokens": one.num_prompt_tokens,
            "num_cached_tokens": one.num_cached_tokens,
            "num_emitted_tokens": one.num_emitted_tokens,
            "num_rounds": one.num_rounds,
            "num_proposed_drafts": self.num_proposed_drafts,
            "num_correct_drafts": self.num_correct_drafts,
            "accept_histogram": None if one.accept_histogram is None else list(one.accept_histogram),
            "output_digest": hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()[:16],
            "started_s": self.started_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "round_s": None if self.round_s is None else dict(self.round_s),
            "phase_s": None if self.phase_s is None else dict(self.phase_s),
        }


def measure(client: ServerClient, prompt: Prompt, max_new_tokens: int, *, ignores_eos: bool = False) -> Measured:
    """Decode one prompt as a stream and time it; ``ignores_eos`` as in ``ServerClient.stream``.

    Raises:
        EngineError: the request failed; also when a stream of status 200 carries an error or ends too early.
    """
    return read(receive(client, prompt, max_new_tokens, ignores_eos=ignores_eos))


def read(received: Received) -> Measured:
    """Read what came. Raises EngineError when an event is no answer, or the stream ended too early."""
    events = [parse_event(received.path, payload) for payload in received.payloads]
    reader = _native if received.path == NATIVE else _openai
    return shaped(received.path, lambda: reader(received, events))


def _native(received: Received, events: Iterable[Mapping[str, Any]]) -> Measured:
    last, seconds, has_our_counters = None, received.e2e_s, received.has_our_counters
    ids: tuple[int, ...] = ()
    meta: Mapping[str, Any] = {}
    for event in events:
        last = from_native(event, seconds, has_our_counters=has_our_counters)
        given = last.token_ids or ()
        # Servers stream either all ids so far or the new ones only.
        ids = given if len(given) == last.num_emitted_tokens else ids + given
        meta = event["meta_info"]
    if last is None or not last.finish:
        raise EngineError("/generate: the stream ended without a finish reason")
    num_decoded = (last.num_rounds or 0) - has_our_counters  # our servers count the prefill as a round
    has_ids = last.token_ids is not None and len(ids) == last.num_emitted_tokens
    return Measured(
        generation=replace(last, token_ids=ids if has_ids else None),
        started_s=received.started_s,
        ttft_s=received.ttft_s,
        e2e_s=seconds,
        round_s=meta.get("round_s") or _mean_round(num_decoded, seconds, received.ttft_s),
        num_proposed_drafts=meta.get("spec_num_proposed_drafts"),
        num_correct_drafts=meta.get("spec_num_correct_drafts"),
        phase_s=meta.get("phase_s"),
    )


def _mean_round(num_rounds: int, seconds: float, ttft: float | None) -> Mapping[str, float] | None:
    """Return a round's mean time, seen from outside, for servers that count rounds and do not time them."""
    if ttft is None or num_rounds < 1:
        return None
    mean = (seconds - ttft) / num_rounds
    return {"num": num_rounds, "median": mean, "min": mean, "max": mean}


def _openai(received: Received, events: Iterable[Mapping[str, Any]]) -> Measured:
    finish, text = "", ""
    usage: Mapping[str, Any] = {}
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            text += piece_of(choice)
            finish = choice.get("finish_reason") or finish
    if not finish:
        raise EngineError(f"{received.path}: the stream ended without a finish reason")
    generation = Generation(
        text=text,
        token_ids=None,
        finish=str(finish),
        **usage_of(usage),
        seconds=received.e2e_s,
    )
    return Measured(generation=generation, started_s=received.started_s, ttft_s=received.ttft_s, e2e_s=received.e2e_s)
