"""Streamed answers over plain HTTP with as little work as can be: http.client, on connections that are kept.

A client that is slower than its server measures itself. Knows one server and no proxy, TLS or compression: for those
there is the general way (``Transport``), which this one must agree with.
"""

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from itertools import chain
from typing import Any
from urllib.request import getproxies

import httpx

CONNECT_TIMEOUT_S = 10.0
READ_BYTES = 65536
# A moment of time.perf_counter, and what came then.
Arrival = tuple[float, bytes]


def is_direct(url: str, *, is_loopback: bool) -> bool:
    """Say whether nothing but plain HTTP lies between this process and a URL."""
    parts = httpx.URL(url)
    has_proxy = not is_loopback and bool(getproxies().keys() & {"http", "all"})
    return parts.scheme == "http" and not parts.userinfo and not parts.query and not has_proxy


class DirectStreams:
    """Connections to one server, as many as there are requests at once; threads may share it.

    Args:
        url: for which ``is_direct``.
        headers: of every request.
        timeout_s: longest wait for a part of an answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = httpx.URL(url)
        self._host, self._port = parts.raw_host.decode().strip("[]"), parts.port or 80
        self._prefix = parts.raw_path.decode().rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "*/*", **headers}
        self._timeout_s = timeout_s
        self._idle: list[HTTPConnection] = []

    def close(self) -> None:
        """Close the connections that wait for a request."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def post(self, path: str, body: Mapping[str, Any]) -> Iterator[HTTPResponse]:
        """Send a request and yield the answer; its connection is used again when it was read to its end.

        Raises:
            OSError, http.client.HTTPException: no connection, or it broke.
        """
        connection = self._connection()
        try:
            connection.request("POST", self._prefix + path, json.dumps(body).encode(), self._headers)
            response = connection.getresponse()
            yield response
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._idle.append(connection)
        else:
            connection.close()

    def _connection(self) -> HTTPConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if _is_open(connection.sock):
                connection.sock.settimeout(self._timeout_s)
                return connection
            connection.close()
        connection = HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        connection.sock.settimeout(self._timeout_s)
        return connection


def _is_open(connection: socket.socket) -> bool:
    """Say whether an idle connection is still good: there is nothing to read, not even its end."""
    connection.settimeout(0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def parts_of(response: HTTPResponse) -> Iterator[bytes]:
    """Yield an answer's bytes as they come. Raises OSError or http.client.HTTPException when it ends too early."""
    while part := response.read1(READ_BYTES):
        yield part
    if response.length:
        raise IncompleteRead(b"", response.length)
    response.close()


def payloads(parts: Iterable[bytes]) -> Iterator[Arrival]:
    """Yield the payload of every server-sent event but ``[DONE]``, and when its last bytes came.

    Lines end where SSE says, not where Unicode has separators: those may stand in a JSON string.
    """
    begun = b""
    # Whatever the stream ends with is a line.
    for part in chain(parts, (b"\n",)):
        now = time.perf_counter()
        *lines, begun = (begun + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[len(b"data:") :].strip()
                # Without data it only keeps the connection open.
                if payload not in {b"", b"[DONE]"}:
                    yield now, payload
