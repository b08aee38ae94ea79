"""What ``/v1/completions`` and ``/v1/chat/completions`` share: checks, usage, finish reasons, streams.

Knows OpenAI's shapes and the bridge. A prompt asked for n times is decoded once: greedy choices are identical.
Source: OpenAI's public API reference.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.records import FinishReason, SamplingParams, StepEvent
from jetspec_engine.server.answers import Answer
from jetspec_engine.server.bridge import Generation
from jetspec_engine.server.context import ServerContext
from jetspec_engine.server.decoding_rules import sampling_params
from jetspec_engine.server.error_replies import error_document, message_of
from jetspec_engine.server.schema_openai import OpenAIFields
from jetspec_engine.server.wire import DONE, encode_event


@dataclass(kw_only=True)
class OpenAIJob:
    """A checked OpenAI-compatible body on its way.

    Attributes:
        name: the response's id.
        kind: the response's ``object``; chunks get ``chunk_kind``.
        num_choices: choices of every prompt.
        has_usage: whether a stream ends with a usage chunk.
        answers: one a prompt.
        created: unix time.
    """

    name: str
    kind: str
    chunk_kind: str
    model: str
    num_choices: int
    has_usage: bool
    answers: list[Answer]
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, choices: Sequence[dict[str, Any]], *, is_chunk: bool) -> dict[str, Any]:
        """Return a response or chunk around some choices."""
        document: dict[str, Any] = {
            "id": self.name,
            "object": self.chunk_kind if is_chunk else self.kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }
        if not is_chunk:
            document["usage"] = self.usage()
        elif self.has_usage:
            document["usage"] = None
        return document

    def usage(self) -> dict[str, Any]:
        """Return the token counts: every prompt once, every choice's output."""
        prompt = sum(answer.num_prompt_tokens for answer in self.answers)
        completion = sum(len(answer.token_ids) for answer in self.answers) * self.num_choices
        cached = sum(answer.num_cached_tokens for answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def places(self, index: int) -> range:
        """Return the choice numbers of one prompt."""
        return range(index * self.num_choices, (index + 1) * self.num_choices)


def openai_sampling(body: OpenAIFields, *, default_max_tokens: int) -> SamplingParams:
    """Return the engine's record of an OpenAI-compatible body's decoding fields. Raises RequestError."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options: only together with stream")
    maximum = default_max_tokens
    if body.max_completion_tokens is not None:
        maximum = body.max_completion_tokens
    elif body.max_tokens is not None:
        maximum = body.max_tokens
    return sampling_params(body, max_new_tokens=maximum, min_new_tokens=body.min_tokens or 0)


def wants_usage(body: OpenAIFields) -> bool:
    """Say whether a stream ends with a usage chunk."""
    return bool(body.stream_options is not None and body.stream_options.include_usage)


def finish_name(finish: FinishReason | None) -> str | None:
    """Return OpenAI's finish_reason; an abort keeps its own name, as SGLang has it."""
    return None if finish is None else finish.kind


async def stream_chunks(
    job: OpenAIJob, generation: Generation, choices_of: Callable[[int, StepEvent], list[dict[str, Any]]]
) -> AsyncIterator[bytes]:
    """Yield a chunk for each choice of each event that has something to say, then the usage, then the end mark.

    Args:
        choices_of: returns the choices to send for an event of a prompt, each in a chunk of its own.
    """
    try:
        async for index, event in generation.events():
            job.answers[index].add(event)
            for choice in choices_of(index, event):
                yield encode_event(job.envelope([choice], is_chunk=True))
        if job.has_usage:
            yield encode_event(job.envelope([], is_chunk=True) | {"usage": job.usage()})
    except EngineError as failure:
        yield encode_event(error_document(500, message_of(failure)))
    yield DONE


def token_bytes(text: str) -> list[int] | None:
    """Return a token's UTF-8, None when its text is not all of it (a part of a character)."""
    return None if "\ufffd" in text else list(text.encode())


def spell_tokens(context: ServerContext, token_ids: Sequence[int]) -> list[str]:
    """Return each token's text."""
    return [context.spell(token) for token in token_ids]
