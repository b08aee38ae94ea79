"""Failures as HTTP answers: one error document for every route.

The document is OpenAI's ``{"error": {"message", "type", "param", "code"}}``, of which SGLang's native
``{"error": {"message"}}`` is a part. Knows the exception classes and nothing of the routes.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jetspec_engine.errors import BusyError, ConfigError, JetspecError, RequestError
from jetspec_engine.server.client_watch import ClientGoneError
from jetspec_engine.server.wire import JsonReply

CLIENT_GONE = 499  # nobody reads it; it is what the request count shows

MAX_MESSAGE = 500

# A validator's place holds the kinds it tried between the names: "str", "list[...]", class names.
FIELD = re.compile(r"[a-z][a-z0-9_]*")
EXPECTED = "Input should be "
NOT_FIELDS = ("body", "str", "int", "float", "bool")

_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    503: "overloaded_error",
}


class ModelNotFoundError(JetspecError):
    """A request names a model that is not served here."""


def error_document(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the error document of a status."""
    if len(message) > MAX_MESSAGE:  # a caller's own value may be a megabyte
        message = message[:MAX_MESSAGE] + "..."
    kind = _TYPE_OF_STATUS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def error_reply(status: int, message: str, *, param: str | None = None, code: str | None = None) -> JsonReply:
    """Return an error answer."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JsonReply(error_document(status, message, param=param, code=code), status_code=status, headers=headers)


def status_of(failure: JetspecError) -> int:
    """Return the HTTP status of an engine's failure: the caller's fault, a full queue, or ours."""
    if isinstance(failure, RequestError | ConfigError):
        return 400
    if isinstance(failure, ModelNotFoundError):
        return 404
    return 503 if isinstance(failure, BusyError) else 500


def message_of(failure: JetspecError) -> str:
    """Return the failure's fact and hint in one line."""
    return f"{failure.what} ({failure.hint})" if failure.hint else failure.what


def param_of(failure: JetspecError) -> str | None:
    """Return the field a RequestError names (its text up to the colon, without an index), where it names one."""
    name, colon, _ = failure.what.partition(":")
    name = name.partition("[")[0]
    return name if colon and name.replace("_", "").isalnum() else None


def describe_validation(failure: RequestValidationError) -> tuple[str, str | None]:
    """Return (one line, field) for the first thing that is wrong with a body.

    A field that may be of several kinds has an error for each kind: the one that got furthest tells most, and kinds
    that failed at the same place are named together.
    """
    errors = failure.errors()
    first = errors[0]
    where = field_path(first["loc"])
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}", None
    if not where:
        return f"the body: {first['msg']}; expected a JSON object sent as application/json", None
    of_field = [error for error in errors if field_path(error["loc"])[:1] == where[:1]]
    best = max(of_field, key=lambda error: (not error["type"].endswith("_type"), len(field_path(error["loc"]))))
    where = field_path(best["loc"])
    message = best["msg"]
    if best["type"].endswith("_type"):
        same = [error["msg"].removeprefix(EXPECTED) for error in of_field if field_path(error["loc"]) == where]
        message = EXPECTED + " or ".join(dict.fromkeys(same))
    return f"{'.'.join(where)}: {message}", where[0]


def field_path(place: Sequence[str | int]) -> list[str]:
    """Return a body's field names and indices from a validator's place, without the kinds it tried on the way."""
    return [str(part) for part in place if isinstance(part, int) or (FIELD.fullmatch(part) and part not in NOT_FIELDS)]


async def _on_validation(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    message, param = describe_validation(failure)
    return error_reply(400, message, param=param)


async def _on_http(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    reply = error_reply(failure.status_code, str(failure.detail))
    reply.headers.update(failure.headers or {})
    return reply


async def _on_engine(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, JetspecError)
    code = "model_not_found" if isinstance(failure, ModelNotFoundError) else None
    return error_reply(status_of(failure), message_of(failure), param=param_of(failure), code=code)


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def install_error_replies(app: FastAPI) -> None:
    """Make every expected failure of a route an error document; bugs are ``gatekeeping.AnswerBugs``'s."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(JetspecError, _on_engine)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
