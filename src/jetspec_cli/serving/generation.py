"""What a server answered to one prompt, read from the native or the OpenAI shape and checked for contradictions.

Knows nothing of HTTP or of comparing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jetspec_engine.errors import EngineError


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One finished request.

    Attributes:
        text: what was written.
        token_ids: emitted ids, or None when the server does not give them.
        finish: stop, length, or what the server calls it.
        num_prompt_tokens, num_emitted_tokens: as the server counts; None when it does not.
        num_cached_tokens: prompt tokens taken from its cache; None when it does not say.
        num_rounds: target verify forwards; None without the counters.
        accept_histogram: entry i counts rounds that emitted i tokens; None without the counters.
        expected_accept_length: tokens a round by the draft head's own account; None where the server does not say.
        seconds: wall time of the request, seen from here.
    """

    text: str
    token_ids: tuple[int, ...] | None
    finish: str
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_emitted_tokens: int | None = None
    num_rounds: int | None = None
    accept_histogram: tuple[int, ...] | None = None
    expected_accept_length: float | None = None
    seconds: float = 0.0

    def accounting_fault(self) -> str:
        """Return the first identity the counters break, or an empty string.

        Every token a server emits belongs to one round, so sum(i * histogram[i]) is the number of emitted tokens
        and sum(histogram) the number of rounds.
        """
        emitted = self.num_emitted_tokens
        if self.token_ids is not None and emitted is not None and len(self.token_ids) != emitted:
            return f"{len(self.token_ids)} token ids came, completion_tokens is {emitted}"
        if self.accept_histogram is None:
            return ""
        rounds = sum(self.accept_histogram)
        tokens = sum(index * count for index, count in enumerate(self.accept_histogram))
        if self.num_rounds is not None and rounds != self.num_rounds:
            return f"the accept histogram holds {rounds} rounds, spec_verify_ct is {self.num_rounds}"
        if emitted is not None and tokens != emitted:
            return f"the accept histogram holds {tokens} tokens, completion_tokens is {emitted}"
        return ""

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def from_native(body: Mapping[str, Any], seconds: float, *, has_our_counters: bool) -> Generation:
    """Read the answer of ``POST /generate``.

    Args:
        body: the JSON object.
        seconds: wall time of the request.
        has_our_counters: the histogram counts emitted tokens a round (other engines count drafts).

    Raises:
        EngineError: the body reports a failure (also with status 200) or is not such an answer.
    """
    refuse_error_body(body)
    meta = body.get("meta_info")
    if not isinstance(meta, Mapping) or not isinstance(body.get("text"), str):
        raise EngineError(f"/generate: an answer without text and meta_info: {sorted(body)}")
    reason = meta.get("finish_reason")
    finish = reason.get("type", "") if isinstance(reason, Mapping) else str(reason or "")
    if finish in ("abort", "error"):
        message = reason.get("message", "") if isinstance(reason, Mapping) else ""
        raise EngineError(f"/generate: the request ended with {finish}: {message or 'no message'}")
    ids = body.get("output_ids")
    histogram = meta.get("spec_accept_histogram")
    return Generation(
        text=body["text"],
        token_ids=tuple(ids) if isinstance(ids, list) else None,
        finish=finish,
        num_prompt_tokens=count_of(meta, "prompt_tokens"),
        num_cached_tokens=count_of(meta, "cached_tokens"),
        num_emitted_tokens=count_of(meta, "completion_tokens"),
        num_rounds=count_of(meta, "spec_verify_ct"),
        accept_histogram=tuple(histogram) if has_our_counters and isinstance(histogram, list) else None,
        expected_accept_length=meta.get("spec_expected_accept_length") if has_our_counters else None,
        seconds=seconds,
    )


def from_openai(body: Mapping[str, Any], seconds: float) -> Generation:
    """Read the answer of ``/v1/completions`` or ``/v1/chat/completions``: text only. Raises EngineError."""
    refuse_error_body(body)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise EngineError(f"an OpenAI answer without choices: {sorted(body)}")
    choice = choices[0]
    message = choice.get("message")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    if not isinstance(text, str | None):
        raise EngineError(f"an OpenAI answer whose text is {text!r}")
    usage = body.get("usage") or {}
    return Generation(
        text=text or "",
        token_ids=None,
        finish=str(choice.get("finish_reason") or ""),
        **usage_of(usage),
        seconds=seconds,
    )


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Generation's token counts from an OpenAI ``usage``. Raises EngineError."""
    return {
        "num_prompt_tokens": count_of(usage, "prompt_tokens"),
        "num_cached_tokens": count_of(usage.get("prompt_tokens_details") or {}, "cached_tokens"),
        "num_emitted_tokens": count_of(usage, "completion_tokens"),
    }


def count_of(found: Mapping[str, Any], key: str) -> int | None:
    """Return a count that a server gave, None where it gave none. Raises EngineError for anything else."""
    value = found.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        raise EngineError(f"an answer with {key} {value!r}, expected a count")
    return int(value)


def rounds_of(chunks: Sequence[int], histogram: Sequence[int]) -> list[int] | None:
    """Return the tokens of each round, from a stream's chunks and the counts the server gives at its end.

    Args:
        chunks: tokens a chunk; the first may hold the prefill's token and the first round's together.
        histogram: entry i counts rounds that emitted i tokens.

    Returns:
        The rounds, the prefill's first; None when chunks and histogram do not agree.
    """
    split = [1, chunks[0] - 1, *chunks[1:]] if chunks and chunks[0] > 1 else []
    for rounds in (list(chunks), split):
        if rounds and all(rounds.count(size) == count for size, count in enumerate(histogram) if size):
            return rounds if len(rounds) == sum(histogram[1:]) else None
    return None


def refuse_error_body(body: Mapping[str, Any]) -> None:
    """Raise EngineError when a body is an error report, whatever its HTTP status was."""
    if "error" in body or body.get("object") == "error":
        error = body.get("error", body)
        message = error.get("message", error) if isinstance(error, Mapping) else error
        raise EngineError(f"the server answered with an error: {message}")
