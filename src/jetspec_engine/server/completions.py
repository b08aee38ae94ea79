"""``/v1/completions``: continue text or token ids.

Knows OpenAI's text completion shapes. The default cap is OpenAI's 16 tokens.
Source: OpenAI's public API reference.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from jetspec_engine.errors import RequestError
from jetspec_engine.records import StepEvent, TokenLogprob
from jetspec_engine.server.context import Context, ServerContext, require_tokens
from jetspec_engine.server.openai_common import (
    COMPLETION,
    OpenAIJob,
    answer,
    finish_name,
    openai_sampling,
    spell_tokens,
)
from jetspec_engine.server.schema_openai import DEFAULT_COMPLETION_TOKENS, CompletionBody
from jetspec_engine.server.wire import finite

router = APIRouter(tags=["OpenAI-compatible"])


@router.post("/v1/completions", summary="Continue a prompt greedily")
async def completions(body: CompletionBody, request: Request, context: Context) -> Response:
    """Answer every prompt with n identical choices."""
    context.check_model(body.model)
    _check(body)
    sampling = openai_sampling(body, default_max_tokens=DEFAULT_COMPLETION_TOKENS)
    prompts = await _prompts(body, context)
    job = OpenAIJob.of(context, body, COMPLETION, prompts=prompts, sampling=sampling, logprobs_top_k=body.logprobs)
    shape = _CompletionShape(job, context, _echoes(body, prompts, context), has_logprobs=body.logprobs is not None)
    return await answer(job, shape, context, request)


class _CompletionShape:
    """Choices of a text completion, whole or in chunks; remembers how far each prompt's text has come."""

    def __init__(self, job: OpenAIJob, context: ServerContext, echoes: list[str], *, has_logprobs: bool) -> None:
        self._job = job
        self._context = context
        self._echoes = echoes
        self._has_logprobs = has_logprobs
        self._is_begun = [False] * len(echoes)
        self._offsets = [0] * len(echoes)

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices that open a stream: none."""
        return []

    def choices(self, index: int) -> list[dict[str, Any]]:
        """Return one prompt's finished choices."""
        answer = self._job.answers[index]
        return self._copies(index, self._echoes[index] + answer.text, answer.logprobs, finish_name(answer.finish))

    def chunks(self, index: int, event: StepEvent) -> list[dict[str, Any]]:
        """Return the choices to send for one event; none when it adds nothing."""
        text = event.text
        if not self._is_begun[index]:
            self._is_begun[index] = True
            text = self._echoes[index] + text
        if not (text or event.finish or (self._has_logprobs and event.logprobs)):
            return []
        return self._copies(index, text, event.logprobs, finish_name(event.finish))

    def _copies(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob], finish: str | None
    ) -> list[dict[str, Any]]:
        shape = self._logprobs(index, logprobs) if self._has_logprobs else None
        return [
            {"index": place, "text": text, "logprobs": shape, "finish_reason": finish}
            for place in self._job.places(index)
        ]

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the logprobs object; text_offset counts characters of the tokens' own texts."""
        tokens = spell_tokens(self._context, [one.token_id for one in logprobs])
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        tops = [{self._context.spell(token): finite(logprob) for token, logprob in one.top} for one in logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [finite(one.logprob) for one in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _check(body: CompletionBody) -> None:
    """Raise RequestError for the options that are not done here."""
    if body.suffix:
        raise RequestError("suffix: not supported, expected it empty or absent")
    if body.best_of not in (None, 1, body.num_choices):
        raise RequestError(f"best_of: {body.best_of}, expected n or absent", hint="greedy choices are identical")
    if body.echo and body.logprobs is not None:
        raise RequestError("echo: not together with logprobs", hint="POST /generate with logprob_start_len 0")


async def _prompts(body: CompletionBody, context: ServerContext) -> list[list[int]]:
    """Return the prompts as token ids. Raises RequestError for an empty one."""
    given = body.prompt
    if isinstance(given, str):
        return [await context.encode(given, "prompt")]
    if not given:
        raise RequestError("prompt: an empty list, expected at least one prompt or token id")
    if isinstance(given[0], int):
        return [[one for one in given if isinstance(one, int)]]
    prompts = []
    for index, one in enumerate(given):
        where = f"prompt[{index}]"
        if isinstance(one, str):
            prompts.append(await context.encode(one, where))
        elif isinstance(one, list):
            prompts.append(require_tokens(list(one), where))
    return prompts


def _echoes(body: CompletionBody, prompts: list[list[int]], context: ServerContext) -> list[str]:
    """Return what stands before each prompt's text: the prompt itself with echo, else nothing."""
    if not body.echo:
        return [""] * len(prompts)
    if isinstance(body.prompt, str):
        return [body.prompt]
    texts = [one for one in body.prompt if isinstance(one, str)]
    return texts or [context.engine.tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]
