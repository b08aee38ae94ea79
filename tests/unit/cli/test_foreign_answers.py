"""Answers of servers that are none of ours, with fields of another type: a failed request, never a bug report."""

import pytest

from jetspec_cli.bench.measure import read
from jetspec_cli.bench.receiving import Received
from jetspec_cli.json_text import parse_json
from jetspec_cli.serving.generation import from_native, from_openai
from jetspec_cli.serving.transport import shaped
from jetspec_engine.errors import EngineError

NATIVE = '{"text": "a", "output_ids": [1], "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}}}'
OPENAI = '{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
CHANGES = {
    "/generate": [
        ('"text": "a"', '"text": NaN'), ('"completion_tokens": 1', '"completion_tokens": "many"'),
        ('"completion_tokens": 1', '"completion_tokens": -1'), ('"completion_tokens": 1', '"completion_tokens": true'),
        ('"completion_tokens": 1', '"completion_tokens": 1.5'), ('"completion_tokens": 1', '"completion_tokens": NaN'),
        ('"completion_tokens": 1', '"spec_verify_ct": [3]'),
    ],
    "/v1/completions": [
        ('"text": "a"', '"text": NaN'), ('"text": "a"', '"text": 5'), ('"text": "a"', '"delta": "a"'),
        ('{"text": "a", "finish_reason": "stop"}', "3"), ('{"completion_tokens": 1}', "[1]"),
        ('{"completion_tokens": 1}', '{"prompt_tokens_details": {"cached_tokens": "x"}}'),
    ],
}  # fmt: skip


def received(path, text):
    return Received(
        path=path, has_our_counters=False, started_s=0.0, ttft_s=0.1, e2e_s=0.2, payloads=(text.encode(),)
    )  # fmt: skip


@pytest.mark.parametrize(("path", "text"), [("/generate", NATIVE), ("/v1/completions", OPENAI)])
def test_case_28_an_answer_as_it_should_be_is_read(path, text):
    assert read(received(path, text)).generation.num_emitted_tokens == 1
    whole = text.replace("1}", "1.0}")
    assert read(received(path, whole)).generation.num_emitted_tokens == 1


@pytest.mark.parametrize(
    ("path", "old", "new"), [(path, *change) for path, changes in CHANGES.items() for change in changes]
)
def test_case_28_a_field_of_another_type_is_a_failed_request(path, old, new):
    text = {"/generate": NATIVE, "/v1/completions": OPENAI}[path]
    assert old in text
    with pytest.raises(EngineError):
        read(received(path, text.replace(old, new)))


@pytest.mark.parametrize(("old", "new"), list(CHANGES["/generate"]))
def test_case_28_so_it_is_without_a_stream(old, new):
    with pytest.raises(EngineError):
        shaped("/generate", lambda: from_native(parse_json(NATIVE.replace(old, new)), 0.0, has_our_counters=True))


@pytest.mark.parametrize("new", ['"text": NaN', '"text": 5', '"message": {"content": ["a"]}'])
def test_case_28_nor_is_a_text_anything_but_text(new):
    with pytest.raises(EngineError):
        shaped("/v1/completions", lambda: from_openai(parse_json(OPENAI.replace('"text": "a"', new)), 0.0))
