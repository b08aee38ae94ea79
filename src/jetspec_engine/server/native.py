"""``/generate``: SGLang's native way to decode text or token ids.

Knows SGLang's request and response shapes; decoding is the bridge's. A prompt asked for n times is decoded once:
greedy choices are identical.
Source: SGLang's public HTTP API (0.5.17).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.records import SamplingParams
from jetspec_engine.server.answers import Answer, gather_answers
from jetspec_engine.server.bridge import Generation
from jetspec_engine.server.context import Context, ServerContext, make_requests, new_id, require_tokens
from jetspec_engine.server.decoding_rules import REFUSED_FIELDS, refuse_fields, sampling_params
from jetspec_engine.server.error_replies import error_document, message_of
from jetspec_engine.server.meta_info import NativeLogprobs, final_meta, progress_meta
from jetspec_engine.server.schema_native import DEFAULT_MAX_NEW_TOKENS, GenerateBody, NativeSampling
from jetspec_engine.server.wire import DONE, EventStream, JsonReply, encode_event

router = APIRouter(tags=["SGLang-native"])


@dataclass(kw_only=True)
class NativeJob:
    """A checked ``/generate`` body on its way.

    Attributes:
        prompts: token ids, a list a prompt.
        is_list: whether the answer is a list.
        num_choices: copies of every answer.
        answers: one a prompt.
        logprobs: how to report log-probabilities; None when not asked for.
        input_meta: the prompt's part of meta_info, one a prompt.
    """

    prompts: list[list[int]]
    is_list: bool
    num_choices: int
    answers: list[Answer]
    logprobs: NativeLogprobs | None
    input_meta: list[dict[str, Any]]

    def documents(self, index: int) -> list[dict[str, Any]]:
        """Return the response objects of one prompt's answer as it is now, one a choice."""
        answer = self.answers[index]
        meta = progress_meta(answer) if answer.finish is None else final_meta(answer)
        if self.logprobs is not None:
            meta |= self.input_meta[index] | self.logprobs.of_output(answer)
        document = {"text": answer.text, "output_ids": list(answer.token_ids), "meta_info": meta}
        if self.num_choices == 1:
            return [document]
        return [
            {**document, "meta_info": {**meta, "id": f"{answer.request_id}_{choice}"}}
            for choice in range(self.num_choices)
        ]


@router.post("/generate", summary="Decode text or token ids greedily")
@router.put("/generate", include_in_schema=False)
async def generate(body: GenerateBody, request: Request, context: Context) -> Response:
    """Answer one prompt with an object and a list of prompts (or n > 1) with a list."""
    refuse_fields(dict(body.model_extra or {}))
    prompts, is_list = await _prompts(body, context)
    fields = _sampling_fields(body, len(prompts))
    samplings = [_native_sampling(one) for one in fields]
    name = _request_names(body, len(prompts))
    top_k = (body.top_logprobs_num or 0) if body.return_logprob else None
    requests, answers = make_requests(name, prompts, samplings, top_k)
    job = NativeJob(
        prompts=prompts,
        is_list=is_list or fields[0].num_choices > 1,
        num_choices=fields[0].num_choices,
        answers=answers,
        logprobs=_logprobs(body, context),
        input_meta=await _score_prompts(body, prompts, context),
    )
    generation = context.bridge.start(requests, whole=name if isinstance(name, str) else None)
    if body.stream:
        return EventStream(_stream(job, generation), generation.close)
    await gather_answers(generation, answers, request.receive)
    documents = [document for index in range(len(prompts)) for document in job.documents(index)]
    return JsonReply(documents if job.is_list else documents[0])


async def _stream(job: NativeJob, generation: Generation) -> AsyncIterator[bytes]:
    """Yield the text so far after every round, one event a choice."""
    try:
        async for index, event in generation.events():
            job.answers[index].add(event)
            for choice, document in enumerate(job.documents(index)):
                place = {"index": index * job.num_choices + choice} if job.is_list else {}
                yield encode_event(document | place)
    except EngineError as failure:
        yield encode_event(error_document(500, message_of(failure)))
    yield DONE


async def _prompts(body: GenerateBody, context: ServerContext) -> tuple[list[list[int]], bool]:
    """Return the prompts as token ids, and whether a list of prompts was given."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("text, input_ids: expected exactly one of them")
    if isinstance(body.text, str):
        return [await context.encode(body.text, "text")], False
    if body.text is not None:
        ids = [await context.encode(text, f"text[{index}]") for index, text in enumerate(body.text)]
        return _some(ids, "text"), True
    given = body.input_ids or []
    if given and isinstance(given[0], list):
        nested = [require_tokens(list(one), f"input_ids[{i}]") for i, one in enumerate(given) if isinstance(one, list)]
        return nested, True
    return [require_tokens([one for one in given if isinstance(one, int)], "input_ids")], False


def _some(prompts: list[list[int]], field_name: str) -> list[list[int]]:
    if not prompts:
        raise RequestError(f"{field_name}: an empty list, expected at least one prompt")
    return prompts


def _sampling_fields(body: GenerateBody, num_prompts: int) -> list[NativeSampling]:
    """Return the decoding fields of every prompt."""
    given = body.sampling_params
    if not isinstance(given, list):
        return [given or NativeSampling.model_validate({})] * num_prompts
    if len(given) != num_prompts:
        raise RequestError(f"sampling_params: {len(given)} entries, expected one for each of {num_prompts} prompts")
    if len({one.num_choices for one in given}) > 1:
        raise RequestError("sampling_params: n differs between prompts, expected the same for all")
    return given


def _native_sampling(fields: NativeSampling) -> SamplingParams:
    """Return the engine's record of one sampling_params object. Raises RequestError, also on an unknown key."""
    maximum = DEFAULT_MAX_NEW_TOKENS if fields.max_new_tokens is None else fields.max_new_tokens
    sampling = sampling_params(fields, max_new_tokens=maximum, min_new_tokens=fields.min_new_tokens or 0)
    for name in fields.extra_fields():
        if name not in REFUSED_FIELDS:
            known = list(NativeSampling.model_fields)
            hint = did_you_mean(name, known) or f"allowed: {', '.join(known)}"
            raise RequestError(f"sampling_params: unknown key {name!r}", hint=hint)
    return sampling


def _request_names(body: GenerateBody, num_prompts: int) -> list[str] | str:
    """Return one id for the whole request, or the caller's own ids, one a prompt."""
    if body.rid is None or isinstance(body.rid, str):
        return body.rid or new_id("")
    if len(body.rid) != num_prompts:
        raise RequestError(f"rid: {len(body.rid)} ids, expected one for each of {num_prompts} prompts")
    return body.rid


def _logprobs(body: GenerateBody, context: ServerContext) -> NativeLogprobs | None:
    if not body.return_logprob:
        return None
    return NativeLogprobs(context, num_top=body.top_logprobs_num or 0, has_text=bool(body.return_text_in_logprobs))


async def _score_prompts(body: GenerateBody, prompts: list[list[int]], context: ServerContext) -> list[dict[str, Any]]:
    """Return the prompts' own log-probabilities, empty where they are not asked for."""
    logprobs = _logprobs(body, context)
    start = -1 if body.logprob_start_len is None else body.logprob_start_len
    if logprobs is None or start < 0:
        return [{} for _ in prompts]
    found = []
    for ids in prompts:
        if start > len(ids):
            raise RequestError(f"logprob_start_len: {start}, expected at most the prompt's {len(ids)} tokens")
        first = max(start, 1)
        scores = []
        if first < len(ids):
            scores = await asyncio.to_thread(context.engine.score, ids, first, body.top_logprobs_num or 1)
        found.append(logprobs.of_input(ids, start, scores))
    return found
