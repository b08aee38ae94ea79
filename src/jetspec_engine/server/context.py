"""What every route shares: the engine, its bridge, the started configuration, and helpers over the tokenizer.

Knows no API's shapes. Text is encoded in a worker thread, because a long prompt takes longer than the event loop
may stand still.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import RequestError
from jetspec_engine.protocol import CompletionEngine
from jetspec_engine.records import GenerateRequest, SamplingParams
from jetspec_engine.server.answers import Answer
from jetspec_engine.server.bridge import EngineBridge
from jetspec_engine.server.decoding_rules import SAMPLING_NOTE
from jetspec_engine.server.error_replies import ModelNotFoundError
from jetspec_engine.server.schema_openai import Message


@dataclass(kw_only=True)
class ServerContext:
    """One running server.

    Attributes:
        started_at: unix time of the start.
        codes: HTTP answers so far by status.
    """

    engine: CompletionEngine
    config: ServeConfig
    bridge: EngineBridge
    started_at: float = field(default_factory=time.time)
    codes: Counter[int] = field(default_factory=Counter)

    @property
    def model_id(self) -> str:
        """Name of the served model, as it was given at start."""
        return self.config.target

    @property
    def max_seq_len(self) -> int:
        """Context length in tokens."""
        return int(self.engine.info()["max_seq_len"])

    def info(self) -> dict[str, Any]:
        """Return what runs: the engine's own document, how requests are decoded, and which extra routes there are."""
        return {**self.engine.info(), "sampling": SAMPLING_NOTE, "offers": ["record", "profile"]}

    async def encode(self, text: str, field_name: str) -> list[int]:
        """Encode a raw prompt.

        Raises:
            RequestError: the prompt has no tokens.
        """
        ids = await asyncio.to_thread(self.engine.tokenizer.encode, text)
        return require_tokens(ids, field_name)

    async def render_chat(self, messages: Sequence[Message]) -> str:
        """Apply the chat template. Raises RequestError on messages it refuses."""
        return await asyncio.to_thread(self.engine.tokenizer.render_chat, plain_messages(messages))

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation."""
        text = await self.render_chat(messages)
        ids = await asyncio.to_thread(self.engine.tokenizer.encode_rendered, text)
        return require_tokens(ids, "messages")

    def spell(self, token_id: int) -> str:
        """Return one token as text, special tokens included."""
        return self.engine.tokenizer.decode([token_id], skip_special_tokens=False)

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError unless name is the served model, "default" or absent."""
        if name not in (None, "", "default", self.model_id):
            raise ModelNotFoundError(f"model: {name!r} does not exist", hint=f"this server has {self.model_id!r}")


def require_tokens(ids: list[int], field_name: str) -> list[int]:
    """Return ids. Raises RequestError when there are none."""
    if not ids:
        raise RequestError(f"{field_name}: empty, expected at least one token")
    return ids


def plain_messages(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return messages as the chat template takes them.

    Text parts are joined with one space, as SGLang does, and "developer" becomes "system", the name templates know.
    """
    return [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": message.content
            if isinstance(message.content, str)
            else " ".join(part.text for part in message.content),
        }
        for message in messages
    ]


def new_id(prefix: str) -> str:
    """Return a fresh request id."""
    return f"{prefix}{uuid.uuid4().hex}"


def make_requests(
    name: str | list[str],
    prompts: Sequence[list[int]],
    samplings: Sequence[SamplingParams],
    logprobs_top_k: int | None,
) -> tuple[list[GenerateRequest], list[Answer]]:
    """Return the engine's requests for some prompts, and the empty answers to fill.

    Args:
        name: the caller's or our id, shared as ``name_0``, ``name_1``, ... by several prompts; or an id a prompt.
        prompts: token ids, a list each.
        samplings: one record a prompt.
    """
    if isinstance(name, list):
        names = name
    else:
        names = [name] if len(prompts) == 1 else [f"{name}_{index}" for index in range(len(prompts))]
    requests = [
        GenerateRequest(request_id=one, input_ids=tuple(ids), sampling=sampling, logprobs_top_k=logprobs_top_k)
        for one, ids, sampling in zip(names, prompts, samplings, strict=True)
    ]
    return requests, [Answer(request_id=one.request_id, num_prompt_tokens=len(one.input_ids)) for one in requests]


async def get_context(request: Request) -> ServerContext:
    """Return the running server's context (a FastAPI dependency)."""
    context: ServerContext = request.app.state.context
    return context


Context = Annotated[ServerContext, Depends(get_context)]
