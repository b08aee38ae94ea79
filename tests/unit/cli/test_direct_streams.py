"""Streams over plain connections: the same events and the same failures as the general way, over connections kept."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from jetspec_cli.serving.direct import is_direct
from jetspec_cli.serving.transport import ServerGoneError, Transport, parse_event
from jetspec_engine.errors import EngineError
from support.paced_server import paced_server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENTS = [{"text": "a"}, {"text": "line\u2028separators\u0085and \x0b"}, {"text": "\U0001f600" * 300}]
BODY = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in EVENTS)


def chunked(*parts):
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts)


def sized(body, length=None):
    return HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def read_request(connection):
    request = b""
    while b"}" not in request:
        request += connection.recv(65536)
    return request


@contextmanager
def raw_server(*answers):
    """One answer a connection, then it is closed; yields the URL and the requests seen."""
    listener, seen = socket.create_server(("127.0.0.1", 0)), []

    def run():
        for answer in answers:
            connection, _ = listener.accept()
            seen.append(read_request(connection))
            for start in range(0, len(answer), 700):
                connection.sendall(answer[start : start + 700])
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        thread.join(5)


def ways(url):
    """The plain way, and the general one."""
    for is_plain in (True, False):
        transport = Transport(url, api_key="key", timeout_s=5)
        assert transport._direct is not None
        if not is_plain:
            transport._direct = None
        yield transport
        transport.close()


def outcome(transport):
    try:
        return list(transport.stream("/generate", {"text": "caf\u00e9", "stream": True}))
    except EngineError as error:
        return type(error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (chunked(BODY, b"data: [DONE]\n\n") + b"0\r\n\r\n", EVENTS),
        (chunked(*(BODY[i : i + 7] for i in range(0, len(BODY), 7))) + b"0\r\n\r\n", EVENTS),
        (chunked(BODY.replace(b"\n", b"\r\n")) + b"0\r\n\r\n", EVENTS),
        (sized(BODY), EVENTS),
        (sized(BODY.rstrip(b"\n")), EVENTS),
        (HEAD + b"Connection: close\r\n\r\n" + BODY, EVENTS),
        (sized(b": a comment\nevent: x\n\n" + BODY), EVENTS),
        (sized(b""), []),
        # An event without data keeps the connection open.
        (sized(b"event: ping\ndata: \n\n" + BODY + b"data:\n\n"), EVENTS),
        # Broken: no last chunk, half a chunk, less than was promised, nothing, no HTTP.
        (chunked(BODY), ServerGoneError),
        (chunked(BODY)[:-40], ServerGoneError),
        (sized(BODY, len(BODY) + 9), ServerGoneError),
        (b"", ServerGoneError),
        (b"nonsense\r\n\r\n", ServerGoneError),
        (sized(b"data: {half\n\n"), ServerGoneError),
        # Failures.
        (sized(b"data: [1]\n\n"), EngineError),
        (sized(b'data: {"error": {"message": "no"}}\n\n'), EngineError),
        (sized(b'data: {"object": "error", "message": "no"}\n\n'), EngineError),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}", EngineError),
        (b"HTTP/1.1 307 Elsewhere\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", EngineError),
    ],
)
def test_both_ways_give_the_same(answer, expected):
    with raw_server(answer, answer) as (url, seen):
        assert [outcome(way) for way in ways(url)] == [expected] * 2
    requests = [request.split(b"\r\n\r\n", 1) for request in seen]
    assert all(b"authorization: bearer key" in head.lower() for head, _ in requests)
    assert [json.loads(body) for _, body in requests] == [{"text": "caf\u00e9", "stream": True}] * 2


def test_what_a_refusal_says_is_told():
    body = b'{"error": {"message": "too long"}}'
    answer = b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with raw_server(answer, answer) as (url, _):
        for way in ways(url):
            with pytest.raises(EngineError, match=r"^/generate: status 400: too long$"):
                list(way.events("/generate", {}))


def test_a_redirect_names_where_to():
    answer = b"HTTP/1.1 302 Found\r\nLocation: https://me:secret@there/v1\r\nContent-Length: 0\r\n\r\n"
    with raw_server(answer, answer) as (url, _):
        for way in ways(url):
            with pytest.raises(
                EngineError, match=r"^/generate: status 302, it is at https://\*\*\*@there/v1$"
            ) as caught:
                list(way.events("/generate", {}))
            assert caught.value.hint


def test_the_base_of_openais_clients_is_the_servers():
    with raw_server(sized(b"{}"), sized(BODY)) as (url, seen):
        transport = Transport(f"{url}/v1/", api_key=None, timeout_s=5)
        transport.send("POST", "/v1/completions", {})
        list(transport.events("/v1/completions", {}))
        transport.close()
    assert [request.split()[1] for request in seen] == [b"/v1/completions"] * 2


def test_no_message_tells_a_password():
    transport = Transport("http://me:secret@127.0.0.1:9/base", api_key=None, timeout_s=5)
    for ask in (lambda: transport.send("GET", "/x"), lambda: list(transport.events("/x", {}))):
        with pytest.raises(ServerGoneError) as caught:
            ask()
        assert "http://***@127.0.0.1:9/base/x" in caught.value.what
        assert "secret" not in f"{caught.value.what} {caught.value.hint}"
    transport.close()


def test_a_connection_the_server_closed_meanwhile_is_not_used_again():
    with raw_server(sized(BODY), sized(BODY)) as (url, seen):
        transport = Transport(url, api_key=None, timeout_s=5)
        for _ in range(2):
            assert outcome(transport) == EVENTS
            (idle,) = transport._direct._idle
            # Until the server's end of it has come.
            assert idle.sock.recv(1, socket.MSG_PEEK) == b""
        transport.close()
    assert len(seen) == 2


def test_connections_are_kept_and_a_stream_left_half_way_is_not():
    with paced_server(spacing_s=0) as paced:
        transport = Transport(paced.url, api_key=None, timeout_s=5)
        for _ in range(3):
            assert len(list(transport.events("/generate", {"stream": True}))) == 58
        next(transport.events("/generate", {"stream": True}))
        assert len(list(transport.events("/generate", {"stream": True}))) == 58
        transport.close()
        # One for the four, one after the stream that was left, one for this question.
        assert paced.sent()["num_connections"] == 3


def test_an_event_takes_less_than_two_thirds_of_the_processor_time():
    def cost(transport):
        begin = time.thread_time()
        for _ in range(20):
            for _, payload in transport.events("/generate", {"stream": True}):
                if transport._direct is None:
                    parse_event("/generate", payload)
        return time.thread_time() - begin

    with paced_server(spacing_s=0) as paced:
        plain, general = (min(cost(way) for _ in range(3)) for way in ways(paced.url))
    assert plain < 0.67 * general


@pytest.mark.parametrize(
    ("url", "proxy", "expected"),
    [
        ("http://127.0.0.1:30000", "", True),
        ("http://127.0.0.1:30000", "http://proxy:1", True),
        ("http://[::1]:30000/base", "", True),
        ("http://far", "", True),
        ("http://far", "http://proxy:1", False),
        ("https://127.0.0.1:30000", "", False),
        ("http://user:word@127.0.0.1", "", False),
    ],
)
def test_only_what_is_plain_goes_the_plain_way(monkeypatch, url, proxy, expected):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("http_proxy", proxy)
    transport = Transport(url, api_key=None, timeout_s=5)
    assert (transport._direct is not None) == expected
    transport.close()
    assert is_direct(url, is_loopback="127.0.0.1" in url or "::1" in url) == expected
