"""JSON over HTTP to one server, with every failure turned into one of our errors.

Knows nothing of what the paths mean.
"""

from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from jetspec_cli.environment import without_user
from jetspec_cli.json_text import parse_json
from jetspec_cli.serving.direct import CONNECT_TIMEOUT_S, Arrival, DirectStreams, is_direct, parts_of, payloads
from jetspec_cli.serving.generation import refuse_error_body
from jetspec_engine.config import check_api_key
from jetspec_engine.errors import ConfigError, EngineError

MAX_TIMEOUT_S = 1e6
Made = TypeVar("Made")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class ServerGoneError(EngineError):
    """Nobody listens there, or the connection broke: further requests would fail too."""


class Transport:
    """Requests to one base URL.

    Args:
        url: ``http://host:port``, with or without a path; ``/v1`` at its end, as OpenAI's clients have it, is left out.
        api_key: sent as a bearer token.
        timeout_s: longest wait for a part of an answer.

    Raises:
        ConfigError: the URL is not http(s), or the key cannot be sent.

    Attributes:
        url: for messages, without a user and password.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        host = host_of(url)
        check_api_key(api_key)
        self._base = url.rstrip("/").removesuffix("/v1")
        self.url = without_user(self._base)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        is_loopback = host in LOOPBACK_HOSTS
        self._direct = (
            DirectStreams(self._base, headers, timeout_s) if is_direct(self._base, is_loopback=is_loopback) else None
        )
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            # Reading the certificate store takes longer than a request to this machine.
            verify=url.startswith("https"),
            # A proxy for the outside world must not swallow requests to this machine.
            trust_env=not is_loopback,
            # As many requests at once as are asked for, each with a connection that is kept.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        if self._direct is not None:
            self._direct.close()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Send one request and return the response, whatever its status.

        Raises:
            ServerGoneError: no connection, or it broke.
            EngineError: no answer in time.
        """
        try:
            return self._http.request(method, self._base + path, json=body)
        except httpx.TimeoutException as error:
            raise EngineError(f"{self.url}{path}: no answer in time ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            hint = f"is a server running at {self.url}? start one: jetspec serve"
            raise ServerGoneError(f"{self.url}{path}: {error or type(error).__name__}", hint=hint) from error

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send one request and return its JSON object. Raises EngineError for any status but 200."""
        return object_of(self.send(method, path, body), path)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Post and yield the events of the stream.

        Raises:
            EngineError: a status other than 200, or an error event inside the stream.
            ServerGoneError: the stream broke.
        """
        for _, payload in self.events(path, body):
            yield parse_event(path, payload)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Arrival]:
        """Post and yield the stream's events as they come, not parsed, each with its moment.

        Raises:
            EngineError: a status other than 200.
            ServerGoneError: the stream broke.
        """
        try:
            if self._direct is not None:
                with self._direct.post(path, body) as answer:
                    if answer.status != 200:
                        object_of(
                            httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read()), path
                        )
                    yield from payloads(parts_of(answer))
            else:
                with self._http.stream("POST", self._base + path, json=body) as response:
                    if response.status_code != 200:
                        response.read()
                        object_of(response, path)
                    yield from payloads(response.iter_bytes())
        except (httpx.HTTPError, HTTPException, OSError, ValueError) as error:
            raise ServerGoneError(f"{self.url}{path}: the stream broke: {error or type(error).__name__}") from error


def parse_event(path: str, payload: bytes) -> Mapping[str, Any]:
    """Return an event of a stream.

    Raises:
        EngineError: it is an error report, or no JSON object.
        ServerGoneError: it is no JSON at all.
    """
    try:
        event = parse_json(payload)
    except ValueError as error:
        raise ServerGoneError(f"{path}: the stream broke: {error}") from error
    if not isinstance(event, Mapping):
        raise EngineError(f"{path}: an event that is no JSON object: {payload[:80].decode(errors='replace')}")
    refuse_error_body(event)
    return event


def host_of(url: str) -> str:
    """Return the host a URL names. Raises ConfigError unless it is ``http(s)://host[:port]``."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in ("http", "https") and parts.port != 0 else None
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"url: {url!r}, expected http://host:port")
    return host


def object_of(response: httpx.Response, path: str) -> Mapping[str, Any]:
    """Return a response's JSON object. Raises EngineError for another status or another kind of body."""
    if response.has_redirect_location:
        moved = f"{path}: status {response.status_code}, it is at {without_user(response.headers['location'])}"
        raise EngineError(moved, hint="give the address that the server has")
    if response.status_code != 200:
        raise EngineError(f"{path}: status {response.status_code}: {message_of(response)}")
    try:
        body = parse_json(response.content)
    except ValueError as error:
        raise EngineError(f"{path}: the answer is not JSON") from error
    if not isinstance(body, Mapping):
        raise EngineError(f"{path}: expected a JSON object")
    return body


def shaped(path: str, read: Callable[[], Made]) -> Made:
    """Read what one of our own servers answered. Raises EngineError when that has another shape than ours."""
    try:
        return read()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise EngineError(
            f"{path}: an answer of an unknown shape: {reason}", hint="is it of another version?"
        ) from error


def message_of(response: httpx.Response) -> str:
    """Return what an error response says, in one line."""
    try:
        body = parse_json(response.content)
    except ValueError:
        return " ".join(response.text.split())[:200] or "no message"
    found = body.get("error", body.get("message", body.get("detail", body))) if isinstance(body, Mapping) else body
    return str(found.get("message", found) if isinstance(found, Mapping) else found)[:300]
