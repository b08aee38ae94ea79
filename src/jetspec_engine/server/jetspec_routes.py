"""JetSpec's own routes: the tree at run time, teacher forcing, recordings, profiles, and text to ids and back.

Knows the engine's tree, score, record, profile and tokenizer calls. The gate and the sweep stand on these.
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import Response

from jetspec_engine.config import TreeConfig, did_you_mean
from jetspec_engine.errors import BusyError, ConfigError, RequestError, UnavailableError
from jetspec_engine.records import GenerateRequest, PositionScore, SamplingParams
from jetspec_engine.server.context import Context, new_id, require_tokens
from jetspec_engine.server.error_replies import error_reply, message_of
from jetspec_engine.server.schema_jetspec import (
    DetokenizeBody,
    ExamineBody,
    ProfileBody,
    RecordBody,
    RenderBody,
    ScoreBody,
    TreeBody,
)
from jetspec_engine.server.wire import JsonReply, finite

router = APIRouter(prefix="/jetspec", tags=["JetSpec"])

_TREE_BODY = {"requestBody": {"content": {"application/json": {"schema": TreeBody.model_json_schema()}}}}


@router.get("/tree", summary="Say which tree is drafted")
async def get_tree(context: Context) -> Response:
    """Answer with the tree as it runs, its budget resolved."""
    return JsonReply(_plain_tree(context.engine.info()["tree"]))


@router.post("/tree", summary="Switch the tree of an idle server", openapi_extra=_TREE_BODY)
async def set_tree(body: Annotated[dict[str, Any], Body()], context: Context) -> Response:
    """Answer with the new tree, its budget resolved; 409 while requests run."""
    tree = _tree_from(body)
    try:
        resolved = await asyncio.to_thread(context.engine.set_tree, tree)
    except BusyError as failure:
        return error_reply(409, message_of(failure))
    return JsonReply(resolved.to_mapping())


@router.post("/score", summary="Teacher-force token ids in one forward")
async def score(body: ScoreBody, context: Context) -> Response:
    """Answer, for every position from start on, with the target's logits given the ids before it."""
    if body.start >= len(body.input_ids):
        raise RequestError(f"start: {body.start}, expected less than the {len(body.input_ids)} ids")
    scores = await asyncio.to_thread(context.engine.score, body.input_ids, body.start, body.top_k)
    dtype = context.engine.info().get("dtype")
    return JsonReply({"dtype": dtype, "positions": [_plain_score(one) for one in scores]})


@router.post("/record", summary="Answer plainly and keep the drafter's offers, for replaying tree settings")
async def record(body: RecordBody, context: Context) -> Response:
    """Answer with the greedy text and the candidates at every token, arrays in base64; 409 while requests run."""
    sampling = SamplingParams(max_new_tokens=body.max_new_tokens)
    request = GenerateRequest(request_id=new_id("record_"), input_ids=tuple(body.input_ids), sampling=sampling)
    try:
        made = await asyncio.to_thread(context.engine.record, request, body.width)
    except BusyError as failure:
        return error_reply(409, message_of(failure))
    return JsonReply(made.to_mapping())


@router.post("/examine", summary="Decode a prompt again under observation")
async def examine(body: ExamineBody, context: Context) -> Response:
    """Answer with a safetensors file: the evidence, and in its metadata the report; 409 while requests run."""
    from jetspec_engine.server.examining import answer

    try:
        content = await asyncio.to_thread(answer, context.engine, body.model_dump())
    except BusyError as failure:
        return error_reply(409, message_of(failure))
    except UnavailableError as failure:
        return error_reply(501, message_of(failure))
    return Response(content, media_type="application/octet-stream")


@router.post("/profile", summary="Decode a prompt and profile its rounds")
async def profile(body: ProfileBody, context: Context) -> Response:
    """Answer with seconds by phase and kernel, the memory floor and a trace; 409 while requests run."""
    # Long enough for every round to emit all it can; the context cuts it.
    sampling = SamplingParams(max_new_tokens=context.max_seq_len, ignore_eos=True)
    request = GenerateRequest(request_id=new_id("profile_"), input_ids=tuple(body.input_ids), sampling=sampling)
    try:
        return JsonReply(await asyncio.to_thread(context.engine.profile, request, body.num_rounds))
    except BusyError as failure:
        return error_reply(409, message_of(failure))


@router.post("/render", summary="Turn a prompt into token ids")
async def render(body: RenderBody, context: Context) -> Response:
    """Answer with the text after the chat template, and the ids a request with this prompt would decode from."""
    if (body.text is None) == (body.messages is None):
        raise RequestError("text, messages: expected exactly one of them")
    if body.messages is not None:
        text = await context.render_chat(body.messages)
        ids = require_tokens(await asyncio.to_thread(context.engine.tokenizer.encode_rendered, text), "messages")
    else:
        text = body.text or ""
        ids = await context.encode(text, "text")
    return JsonReply({"text": text, "input_ids": list(ids)})


@router.post("/detokenize", summary="Turn token ids into text")
async def detokenize(body: DetokenizeBody, context: Context) -> Response:
    """Answer with the text; incomplete UTF-8 shows as U+FFFD."""
    tokenizer = context.engine.tokenizer
    for position, token_id in enumerate(body.ids):
        if token_id >= tokenizer.vocab_size:
            raise RequestError(f"ids[{position}]: {token_id}, expected less than {tokenizer.vocab_size}")
    skip = body.skip_special_tokens
    text = await asyncio.to_thread(lambda: tokenizer.decode(body.ids, skip_special_tokens=skip))
    return JsonReply({"text": text})


def _tree_from(body: dict[str, Any]) -> TreeConfig:
    """Return the tree a body describes. Raises ConfigError naming the field, its value and what is allowed."""
    allowed = list(TreeBody.model_fields)
    for name in body:
        if name not in allowed:
            near = did_you_mean(name, allowed)
            raise ConfigError(f"tree: unknown key {name!r}, allowed: {', '.join(allowed)}", hint=near)
    return TreeConfig.from_mapping(body)


def _plain_tree(tree: Any) -> dict[str, Any]:
    """Return the engine's tree as plain data, whether it gives a TreeConfig or a mapping."""
    return tree.to_mapping() if isinstance(tree, TreeConfig) else dict(tree)


def _plain_score(one: PositionScore) -> dict[str, Any]:
    """Return a position's score with its infinities as null."""
    return {
        "position": one.position,
        "token_id": one.token_id,
        "logit": finite(one.logit),
        "logprob": finite(one.logprob),
        "top": [[token, finite(logit), finite(logprob)] for token, logit, logprob in one.top],
    }
