"""What is kept of a stream while others run: enough to read it as if every event had been read at once."""

import json
from types import SimpleNamespace

import pytest

from jetspec_cli.bench import receiving
from jetspec_cli.bench.measure import read
from jetspec_cli.bench.receiving import Received, receive
from jetspec_engine.errors import EngineError
from support.paced_server import TOKENS, events


def payloads_of(lines):
    return [line.removeprefix(b"data: ").strip() for line in lines if b"[DONE]" not in line]


def client_of(payloads, path="/generate"):
    """A client whose stream has these events, one a second."""
    return SimpleNamespace(
        kind="sglang",
        stream=lambda *_, **__: (path, ((receiving.time.perf_counter() + i, p) for i, p in enumerate(payloads))),
    )


def slowly(payloads, path="/generate"):
    """The oracle: every event is read."""
    return read(
        Received(path=path, has_our_counters=False, started_s=0, ttft_s=0, e2e_s=1, payloads=tuple(payloads))
    ).generation


def changed(payload, **changes):
    return json.dumps({**json.loads(payload), **changes}).encode()


def chat(*pieces, finish="stop"):
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}]
    return [json.dumps(one).encode() for one in (*chunks, {"choices": [], "usage": {"completion_tokens": 3}})]


CUMULATIVE = payloads_of(events(58))
NEW_ONLY = payloads_of(events(58, is_cumulative=False))
NO_IDS = [changed(payload, output_ids=None) for payload in CUMULATIVE]
QUOTES = [changed(payload, text='say "error" or "abort"') for payload in CUMULATIVE]


@pytest.mark.parametrize(
    ("payloads", "num_kept", "num_parsed"),
    [
        (CUMULATIVE, 2, 2),
        (NEW_ONLY, 58, 2),
        (NO_IDS, 2, 2),
        (QUOTES, 2, 2),
        (CUMULATIVE[:1] + CUMULATIVE[-1:], 2, 2),
        (CUMULATIVE[-1:], 1, 1),
    ],
)
def test_native_streams(monkeypatch, payloads, num_kept, num_parsed):
    parsed = []
    parse = receiving.parse_event
    monkeypatch.setattr(receiving, "parse_event", lambda *args: parsed.append(args) or parse(*args))
    received = receive(client_of(payloads), None, TOKENS)
    assert (len(received.payloads), len(parsed)) == (num_kept, num_parsed)
    generation, expected = read(received).generation, slowly(payloads)
    assert {**generation.to_mapping(), "seconds": 0} == {**expected.to_mapping(), "seconds": 0}
    assert generation.num_emitted_tokens == TOKENS
    assert generation.token_ids == (None if payloads is NO_IDS else tuple(range(1000, 1000 + TOKENS)))


def test_chat_streams():
    payloads = chat("", "a", "b", 'say "error"', "c")
    received = receive(client_of(payloads, "/v1/chat/completions"), None, TOKENS)
    assert received.payloads == tuple(payloads)
    assert read(received).generation.text == 'absay "error"c'
    # The second event is the first with text, and the events are a second apart.
    assert received.ttft_s == pytest.approx(1, abs=0.5)


def test_the_first_token_is_when_the_first_event_with_tokens_came():
    empty = changed(CUMULATIVE[0], meta_info={"completion_tokens": 0, "finish_reason": None})
    assert receive(client_of([empty, empty, *CUMULATIVE]), None, TOKENS).ttft_s == pytest.approx(2, abs=0.5)
    assert receive(client_of([empty]), None, TOKENS).ttft_s is None


ABORT = changed(CUMULATIVE[30], meta_info={"completion_tokens": 9, "finish_reason": {"type": "abort"}})


@pytest.mark.parametrize("place", [0, 1, 20, 57])
@pytest.mark.parametrize(
    "bad",
    [
        b'{"error": {"message": "no"}}',
        b'{"error":"no"}',
        b'{"object":"error","message":"no"}',
        b"[1]",
        b"{half",
        b"",
        b"\xff",
        ABORT,
    ],
)
def test_case_29_a_failure_inside_a_stream_of_status_200_is_seen_when_it_comes(place, bad):
    payloads = [*CUMULATIVE[:place], bad, *CUMULATIVE[place:]]
    with pytest.raises(EngineError):
        receive(client_of(payloads), None, TOKENS)
    if bad is not ABORT:
        chunks = chat(*"abcdef")
        with pytest.raises(EngineError):
            receive(client_of([*chunks[:place], bad, *chunks[place:]], "/v1/completions"), None, TOKENS)


@pytest.mark.parametrize("payloads", [[], CUMULATIVE[:1], CUMULATIVE[:-1], NEW_ONLY[:-1]])
def test_a_stream_that_ends_too_early_is_a_failure(payloads):
    with pytest.raises(EngineError, match="without a finish reason"):
        read(receive(client_of(payloads), None, TOKENS))
