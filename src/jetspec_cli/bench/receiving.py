"""What is done while an answer comes, and no more: moments are taken, bytes are kept, errors are seen.

Requests that run at the same time share this process: what one of them computes, the others wait for. So events are
parsed until the first token, and read when nothing is being timed. Knows nothing of what is reported.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.generation import from_native
from jetspec_cli.serving.transport import parse_event, shaped

NATIVE = "/generate"


@dataclass(frozen=True, kw_only=True)
class Received:
    """A stream that came to its end, not read yet.

    Attributes:
        path: decides the events' shape.
        has_our_counters: the server is ours.
        started_s: when it was sent, on this process's clock.
        ttft_s: until the first token; None when none came.
        e2e_s: until the end of the stream.
        payloads: the events that must be read, in order, the last one last; of a stream that repeats all ids in
            every event those in between are left out.
    """

    path: str
    has_our_counters: bool
    started_s: float
    ttft_s: float | None
    e2e_s: float
    payloads: tuple[bytes, ...]


def receive(client: ServerClient, prompt: Prompt, max_new_tokens: int, *, ignores_eos: bool = False) -> Received:
    """Send one prompt and keep what comes; ``ignores_eos`` as in ``ServerClient.stream``.

    Raises:
        EngineError: the request failed; also when a stream of status 200 carries an error.
    """
    path, events = client.stream(prompt, max_new_tokens, ignores_eos=ignores_eos)
    count = _count_native if path == NATIVE else _count_openai
    ttft, is_known, repeats = None, False, False
    kept: list[bytes] = []
    started = time.perf_counter()
    for came, payload in events:
        if is_known and not _is_suspect(payload):
            if repeats:
                kept.pop()
            kept.append(payload)
            continue
        event = parse_event(path, payload)
        has_tokens = shaped(path, partial(count, event)) > 0
        kept.append(payload)
        if has_tokens and ttft is None:
            # Of a native stream the next event shows whether it repeats.
            ttft, is_known = came - started, path != NATIVE
        elif has_tokens and path == NATIVE:
            is_known, repeats = True, _repeats_ids(event)
    return Received(
        path=path,
        has_our_counters=client.kind == "jetspec",
        started_s=started,
        ttft_s=ttft,
        e2e_s=time.perf_counter() - started,
        payloads=tuple(kept),
    )


def _is_suspect(payload: bytes) -> bool:
    """Say whether an event may be a failure. Inside a JSON string, quotes have backslashes."""
    return b'"error"' in payload or b'"abort"' in payload or payload[:1] != b"{" or payload[-1:] != b"}"


def _count_native(event: Mapping[str, Any]) -> int:
    """Return how many tokens there are so far. Raises EngineError."""
    return from_native(event, 0.0, has_our_counters=False).num_emitted_tokens or 0


def _count_openai(event: Mapping[str, Any]) -> int:
    """Return how many of an event's choices have text."""
    return sum(bool(piece_of(choice)) for choice in event.get("choices") or ())


def piece_of(choice: Mapping[str, Any]) -> str:
    """Return the text an OpenAI event adds."""
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""


def _repeats_ids(event: Mapping[str, Any]) -> bool:
    """Say whether a later native event has all ids so far, or none at all: then the last one is enough."""
    ids = event.get("output_ids")
    return not isinstance(ids, list) or len(ids) == event["meta_info"].get("completion_tokens")
