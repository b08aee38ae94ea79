"""SGLang's routes around decoding: health, what runs, cache flush, abort, and the metrics page.

Knows SGLang's paths and keys. Paths that newer SGLang releases renamed answer under both names.
Source: SGLang's public HTTP API (0.5.17).
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import PlainTextResponse, Response

from jetspec_engine.errors import BusyError, EngineError, RequestError
from jetspec_engine.records import GenerateRequest, SamplingParams
from jetspec_engine.server.answers import Answer, gather_answers
from jetspec_engine.server.context import Context, ServerContext, new_id
from jetspec_engine.server.error_replies import error_reply, message_of
from jetspec_engine.server.metrics import CONTENT_TYPE, render_metrics
from jetspec_engine.server.schema_native import AbortBody
from jetspec_engine.server.wire import JsonReply

router = APIRouter(tags=["SGLang-native"])


@router.get("/health", summary="Say that the server listens")
async def health() -> Response:
    """Answer 200 without asking the engine."""
    return JsonReply({"status": "ok"})


@router.get("/health_generate", summary="Decode one token")
async def health_generate(request: Request, context: Context) -> Response:
    """Answer 200 when the engine really decodes a token, else 503."""
    token = context.engine.tokenizer.bos_token_id or 0
    name = new_id("HEALTH_CHECK_")
    sampling = SamplingParams(max_new_tokens=1, ignore_eos=True)
    answer = Answer(request_id=name, num_prompt_tokens=1)
    try:
        generation = context.bridge.start([GenerateRequest(request_id=name, input_ids=(token,), sampling=sampling)])
        await gather_answers(generation, [answer], request.receive)
    except (BusyError, EngineError) as failure:
        return error_reply(503, message_of(failure))
    if not answer.token_ids:
        return error_reply(503, "the engine ended a request without a token")
    return JsonReply({"status": "ok"})


@router.post("/flush_cache", summary="Drop every cached prefix")
@router.get("/flush_cache", include_in_schema=False)
async def flush_cache(context: Context) -> Response:
    """Answer 200 once the prefix cache is empty, 409 while requests run or wait."""
    try:
        await asyncio.to_thread(context.engine.flush_cache)
    except BusyError as failure:
        return error_reply(409, message_of(failure))
    return PlainTextResponse("Cache flushed.\n")


@router.post("/abort_request", summary="Abort one request, or all")
async def abort_request(body: Annotated[AbortBody, Body()], context: Context) -> Response:
    """Answer 200 with the ids that were running; an unknown rid is no error, it may have just finished."""
    if body.abort_all:
        running = sorted(context.bridge.active)
        context.bridge.abort_all()
        return JsonReply({"aborted": running})
    if not body.rid:
        raise RequestError("rid: missing, expected a request id or abort_all")
    return JsonReply({"aborted": sorted(context.bridge.abort(body.rid))})


@router.get("/get_model_info", summary="Say which model is served")
@router.get("/model_info", include_in_schema=False)
async def get_model_info(context: Context) -> Response:
    """Answer with SGLang's keys."""
    return JsonReply(
        {
            "model_path": context.config.target,
            "tokenizer_path": context.config.target,
            "served_model_name": context.model_id,
            "is_generation": True,
            "preferred_sampling_params": {"temperature": 0},
        }
    )


@router.get("/get_server_info", summary="Say what runs")
@router.get("/server_info", include_in_schema=False)
async def get_server_info(context: Context) -> Response:
    """Answer with SGLang's keys where they apply, and with everything this engine says under ``jetspec``."""
    return JsonReply(server_info(context))


def server_info(context: ServerContext) -> dict[str, Any]:
    """Return the document of ``/get_server_info``; holds no secret."""
    info, config = context.info(), context.config
    counters = context.engine.counters()
    rounds = counters.get("rounds", 0)
    return {
        "model_path": config.target,
        "tokenizer_path": config.target,
        "served_model_name": context.model_id,
        "speculative_algorithm": "JETSPEC",
        "speculative_draft_model_path": config.head,
        "dtype": info.get("dtype"),
        "device": info.get("device"),
        "page_size": info.get("page_size"),
        "context_length": info.get("max_seq_len"),
        "max_running_requests": config.max_running,
        "max_queued_requests": config.max_queued,
        "version": info.get("version"),
        "internal_states": [{"avg_spec_accept_length": counters.get("emitted_tokens", 0) / rounds if rounds else 0.0}],
        "jetspec": info,
    }


@router.get("/metrics", summary="Counters in Prometheus' text format")
async def metrics(context: Context) -> Response:
    """Answer with totals since start and gauges of now."""
    return Response(render_metrics(context.engine.counters(), context.codes), media_type=CONTENT_TYPE)
