"""``/v1/models``: the one model that is served.

Source: OpenAI's public API reference; ``max_model_len`` as vLLM and SGLang add it.
"""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from jetspec_engine.server.context import Context, ServerContext
from jetspec_engine.server.wire import JsonReply

router = APIRouter(tags=["OpenAI-compatible"])


@router.get("/v1/models", summary="List the served model")
async def list_models(context: Context) -> Response:
    """Answer with a list of one."""
    return JsonReply({"object": "list", "data": [_card(context)]})


@router.get("/v1/models/{model:path}", summary="Describe the served model")
async def retrieve_model(model: str, context: Context) -> Response:
    """Answer with the model, 404 for any other name."""
    context.check_model(model)
    return JsonReply(_card(context))


def _card(context: ServerContext) -> dict[str, Any]:
    return {
        "id": context.model_id,
        "object": "model",
        "created": int(context.started_at),
        "owned_by": "jetspec",
        "root": context.config.target,
        "parent": None,
        "max_model_len": context.max_seq_len,
    }
