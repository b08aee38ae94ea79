"""What ``/v1/completions`` and ``/v1/chat/completions`` share: checks, usage, finish reasons, streams.

Knows OpenAI's shapes and the bridge. A prompt asked for n times is decoded once: greedy choices are identical.
Source: OpenAI's public API reference.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from starlette.requests import Request
from starlette.responses import Response

from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.records import FinishReason, GenerateRequest, SamplingParams, StepEvent
from jetspec_engine.server.answers import Answer, gather_answers
from jetspec_engine.server.bridge import Generation
from jetspec_engine.server.context import ServerContext, make_requests, new_id
from jetspec_engine.server.decoding_rules import sampling_params
from jetspec_engine.server.error_replies import error_document, message_of
from jetspec_engine.server.schema_openai import OpenAIFields
from jetspec_engine.server.wire import DONE, EventStream, JsonReply, encode_event


class Kind(NamedTuple):
    """What a response's id begins with, and its ``object``, whole and in chunks."""

    id_prefix: str
    whole: str
    chunk: str


CHAT = Kind("chatcmpl-", "chat.completion", "chat.completion.chunk")
COMPLETION = Kind("cmpl-", "text_completion", "text_completion")


class Shape(Protocol):
    """How one route writes its choices."""

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices that open a stream, each in a chunk of its own."""
        ...

    def choices(self, index: int) -> list[dict[str, Any]]:
        """Return one prompt's finished choices."""
        ...

    def chunks(self, index: int, event: StepEvent) -> list[dict[str, Any]]:
        """Return the choices to send for an event of a prompt, each in a chunk of its own."""
        ...


@dataclass(kw_only=True)
class OpenAIJob:
    """A checked OpenAI-compatible body on its way.

    Attributes:
        name: the response's id.
        kind: what the response is.
        requests: for the engine, one a prompt.
        is_stream: whether the answer is a stream.
        num_choices: choices of every prompt.
        has_usage: whether a stream ends with a usage chunk.
        answers: one a prompt.
        created: unix time.
    """

    name: str
    kind: Kind
    model: str
    num_choices: int
    is_stream: bool
    has_usage: bool
    requests: list[GenerateRequest]
    answers: list[Answer]
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls,
        context: ServerContext,
        body: OpenAIFields,
        kind: Kind,
        *,
        prompts: list[list[int]],
        sampling: SamplingParams,
        logprobs_top_k: int | None,
    ) -> Self:
        """Make the job of a checked body: its prompts as token ids, and one way of decoding for all of them."""
        name = new_id(kind.id_prefix)
        requests, answers = make_requests(name, prompts, [sampling] * len(prompts), logprobs_top_k)
        return cls(
            name=name,
            kind=kind,
            model=context.model_id,
            num_choices=body.num_choices,
            is_stream=bool(body.stream),
            has_usage=wants_usage(body),
            requests=requests,
            answers=answers,
        )

    def envelope(self, choices: Sequence[dict[str, Any]], *, is_chunk: bool) -> dict[str, Any]:
        """Return a response or chunk around some choices."""
        document: dict[str, Any] = {
            "id": self.name,
            "object": self.kind.chunk if is_chunk else self.kind.whole,
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


async def answer(job: OpenAIJob, shape: Shape, context: ServerContext, request: Request) -> Response:
    """Decode a job's prompts and answer, as a stream or as a whole.

    Raises:
        RequestError, BusyError: the engine takes none of its requests.
    """
    generation = context.bridge.start(job.requests, whole=job.name)
    if job.is_stream:
        return EventStream(stream_chunks(job, generation, shape), generation.close)
    await gather_answers(generation, job.answers, request.receive)
    choices = [choice for index in range(len(job.answers)) for choice in shape.choices(index)]
    return JsonReply(job.envelope(choices, is_chunk=False))


async def stream_chunks(job: OpenAIJob, generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    """Yield the opening, a chunk for each choice of each event that has something to say, the usage, the end mark."""
    try:
        for choice in shape.opening():
            yield encode_event(job.envelope([choice], is_chunk=True))
        async for index, event in generation.events():
            job.answers[index].add(event)
            for choice in shape.chunks(index, event):
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
