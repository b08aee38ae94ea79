"""JSON that leaves the server is always JSON."""

import json
import math

import pytest

from jetspec_engine.server.metrics import render_metrics
from jetspec_engine.server.wire import encode_event, encode_json, finite


@pytest.mark.parametrize("text", ["plain", "🦊 你好", '"quoted"\n', "\x00\x1f", "a \ud800 lone surrogate", "\u2028"])
def test_any_string_survives(text: str) -> None:
    assert json.loads(encode_json({"text": text}).decode("utf-8")) == {"text": text}


def test_an_event_is_one_line() -> None:
    assert encode_event({"text": "a\nb"}) == b'data: {"text":"a\\nb"}\n\n'


def test_floats_that_are_not_finite_never_leave() -> None:
    assert [finite(value) for value in (1.5, math.nan, math.inf, -math.inf)] == [1.5, None, None, None]
    with pytest.raises(ValueError):
        encode_json({"value": math.nan})


def test_unknown_counters_are_totals() -> None:
    page = render_metrics({"novel": 2.5, "running": 3}, {200: 1, 404: 2})
    assert "# TYPE jetspec_novel_total counter\njetspec_novel_total 2.5\n" in page
    assert "# TYPE jetspec_requests_running gauge\njetspec_requests_running 3\n" in page
    assert page.endswith('jetspec_http_requests_total{code="200"} 1\njetspec_http_requests_total{code="404"} 2\n')
