"""Reads server-sent events the plain way."""

import json
from typing import Any


def parse_events(body: str) -> list[dict[str, Any]]:
    """Return a stream's documents; the stream must end with the end mark."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
