"""Puts the HTTP application together: routes, error answers, key, body bound, counting.

Knows no socket and no process; ``listener`` runs what this makes.
"""

from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from jetspec_engine import __version__
from jetspec_engine.config import ServeConfig
from jetspec_engine.protocol import CompletionEngine
from jetspec_engine.server import chat, completions, jetspec_routes, model_list, native, native_admin
from jetspec_engine.server.bridge import EngineBridge
from jetspec_engine.server.context import ServerContext
from jetspec_engine.server.error_replies import install_error_replies
from jetspec_engine.server.gatekeeping import AnswerBugs, BoundBody, CountAnswers, RequireKey, body_limit
from jetspec_engine.server.schema_openai import ErrorDocument

DESCRIPTION = """Tree-drafted greedy decoding over an SGLang-native and an OpenAI-compatible API.

Only greedy decoding is drafted: temperature is 0 or absent (absent means 0). Sampling, penalties, grammars and tools
are refused with a 400 that names the field. Other unknown fields are ignored, except inside `sampling_params` and on
`/jetspec` routes, where they are refused. Special tokens typed into a prompt are read as special tokens."""

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorDocument, "description": "The request is wrong; the message names the field."},
    401: {"model": ErrorDocument, "description": "No valid API key."},
    408: {"model": ErrorDocument, "description": "The body did not arrive in time."},
    409: {"model": ErrorDocument, "description": "The engine is not idle."},
    413: {"model": ErrorDocument, "description": "The body is too large."},
    503: {"model": ErrorDocument, "description": "The queue is full."},
}


def create_app(engine: CompletionEngine, config: ServeConfig) -> FastAPI:
    """Return the application over a running engine; its context is ``app.state.context``."""
    context = ServerContext(engine=engine, config=config, bridge=EngineBridge(engine))
    # Outermost first: every answer is counted, also those of the layers inside.
    layers = [Middleware(CountAnswers, codes=context.codes), Middleware(AnswerBugs)]
    if config.api_key:
        layers.append(Middleware(RequireKey, api_key=config.api_key))
    layers.append(Middleware(BoundBody, limit=body_limit(context.max_seq_len)))
    app = FastAPI(
        title="JetSpec",
        version=__version__,
        description=DESCRIPTION,
        middleware=layers,
        responses=_ERRORS,
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    install_error_replies(app)
    for part in (native, native_admin, completions, chat, model_list, jetspec_routes):
        app.include_router(part.router)
    return app
