"""Whatever is sent, the answer is a result or a 4xx with a message, and the server lives (cases 18, 22, 24)."""

import json
import re
import threading

import httpx
import pytest

from support.live_server import LiveServer

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]

BAD: list[tuple[str, object]] = [
    ("/generate", {}),
    ("/generate", {"text": ""}),
    ("/generate", {"text": []}),
    ("/generate", {"text": ["ok", ""]}),
    ("/generate", {"text": None, "input_ids": None}),
    ("/generate", {"text": "x", "input_ids": [1]}),
    ("/generate", {"text": 5}),
    ("/generate", {"text": {"a": 1}}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"input_ids": [[]]}),
    ("/generate", {"input_ids": [1, [2]]}),
    ("/generate", {"input_ids": ["1"]}),
    ("/generate", {"input_ids": [1.5]}),
    ("/generate", {"input_ids": [True]}),
    ("/generate", {"input_ids": [-1]}),
    ("/generate", {"input_ids": [259]}),
    ("/generate", {"input_ids": [2**40]}),
    ("/generate", {"input_ids": [10**400]}),
    ("/generate", {"input_ids": "123"}),
    ("/generate", {"input_ids": [1] * 4096}),
    ("/generate", {"text": "x", "rid": 7}),
    ("/generate", {"text": "x", "rid": ["a", "b"]}),
    ("/generate", {"text": ["x", "y"], "rid": ["same", "same"]}),
    ("/generate", {"text": "x", "stream": "yes"}),
    ("/generate", {"text": "x", "return_logprob": 1}),
    ("/generate", {"text": "x", "return_logprob": True, "top_logprobs_num": -1}),
    ("/generate", {"text": "x", "return_logprob": True, "top_logprobs_num": 10**9}),
    ("/generate", {"text": "x", "return_logprob": True, "logprob_start_len": 2}),
    ("/generate", {"text": "x", "image_data": "http://example.org/a.png"}),
    ("/generate", {"text": "x", "lora_path": "a"}),
    ("/generate", {"text": "x", "sampling_params": []}),
    ("/generate", {"text": "x", "sampling_params": "greedy"}),
    ("/generate", {"text": "x", "sampling_params": [{}, {}]}),
    ("/generate", {"text": ["x", "y"], "sampling_params": [{"n": 1}, {"n": 2}]}),
    *(
        ("/generate", {"text": "x", "sampling_params": params})
        for params in (
            {"temperature": 1}, {"temperature": -1}, {"temperature": "0"}, {"temperature": [0]},
            {"top_p": 0}, {"top_p": 2}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": -2}, {"min_p": 0.5},
            {"frequency_penalty": 1}, {"presence_penalty": 0.1}, {"repetition_penalty": 1.2},
            {"repetition_penalty": "1"},
            {"logit_bias": {"1": 2}}, {"logit_bias": [1]}, {"n": 0}, {"n": 10**6}, {"n": 1.5},
            {"max_new_tokens": -1}, {"max_new_tokens": "9"}, {"max_new_tokens": 10**30}, {"max_new_tokens": 2.5},
            {"min_new_tokens": 5, "max_new_tokens": 4}, {"stop": ""}, {"stop": [""]}, {"stop": [1]},
            {"stop": ["a"] * 99},
            {"stop_token_ids": [-1]}, {"stop_token_ids": ["a"]}, {"stop_token_ids": [300]}, {"ignore_eos": "true"},
            {"json_schema": "{}"}, {"regex": "a"}, {"ebnf": "root ::= a"}, {"max_new_token": 5}, {"": 1},
        )
    ),
    ("/v1/completions", {}),
    ("/v1/completions", {"prompt": ""}),
    ("/v1/completions", {"prompt": []}),
    ("/v1/completions", {"prompt": [[]]}),
    ("/v1/completions", {"prompt": None}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/completions", {"prompt": ["a", 1]}),
    ("/v1/completions", {"prompt": [300]}),
    ("/v1/completions", {"prompt": "a" * 4096}),
    ("/v1/completions", {"prompt": "x", "logprobs": 50}),
    ("/v1/completions", {"prompt": "x", "logprobs": True}),
    ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}),
    ("/v1/completions", {"prompt": "x", "best_of": 3}),
    ("/v1/completions", {"prompt": "x", "max_tokens": -5}),
    ("/v1/completions", {"prompt": "x", "max_tokens": "five"}),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "x", "model": 5}),
    (CHAT, {}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": "hi"}),
    (CHAT, {"messages": ["hi"]}),
    (CHAT, {"messages": [{"role": "user"}]}),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user", "content": None}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (CHAT, {"messages": [{"role": "assistant", "content": "refused by this template"}]}),
    (CHAT, {"messages": HELLO, "top_logprobs": 3}),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {}}}),
    (CHAT, {"messages": HELLO, "tool_choice": "required"}),
    ("/jetspec/tree", []),
    ("/jetspec/tree", {"width": 0}),
    ("/jetspec/tree", {"width": "8"}),
    ("/jetspec/tree", {"width": 10**400}),
    ("/jetspec/tree", {"budget": -3}),
    ("/jetspec/tree", {"rule": "best-first"}),
    ("/jetspec/tree", {"rule": ["best_first"]}),
    ("/jetspec/tree", {"beta": 10**400}),
    ("/jetspec/tree", {"beta": True}),
    ("/jetspec/tree", {"keep_spine": 1}),
    ("/jetspec/tree", {"depth": 3}),
    ("/jetspec/score", {}),
    ("/jetspec/score", {"input_ids": [1]}),
    ("/jetspec/score", {"input_ids": [1, 2], "start": 0}),
    ("/jetspec/score", {"input_ids": [1, 2], "start": 2}),
    ("/jetspec/score", {"input_ids": [1, 2], "top_k": 10**6}),
    ("/jetspec/score", {"input_ids": [1, 2], "topk": 2}),
    ("/jetspec/render", {}),
    ("/jetspec/render", {"text": ""}),
    ("/jetspec/render", {"text": "x", "messages": HELLO}),
    ("/jetspec/detokenize", {"ids": [259]}),
    ("/jetspec/detokenize", {"ids": "abc"}),
    ("/abort_request", {}),
    ("/generate", {"text": "x", "sampling_params": {"k" * 100_000: 1}}),
    ("/v1/completions", {"prompt": "x", "model": "m" * 100_000}),
    ("/jetspec/tree", {"k" * 100_000: 1}),
    ("/jetspec/tree", {"rule": "r" * 100_000}),
    ("/abort_request", {"rid": ["a"]}),
]  # fmt: skip

BAD_BYTES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"17",
    b'{"text": "x",}',
    b"{'text': 'x'}",
    b'{"text": "\xff\xfe"}',
    b"\x00\x01\x02",
    b"[" * 100_000,
    b'{"text": "\\ud800"}',
    b'{"text": "x", "sampling_params": {"temperature": NaN}}',
    b'{"text": "x", "sampling_params": {"top_p": Infinity}}',
    b'{"text": "x", "sampling_params": {"\\ud800": 1}}',
    b'{"text": "x", "rid": "\\udfff"}',
    b'{"input_ids": [' + b"9" * 5000 + b"]}",
]


def assert_refused(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["message"]
    # What a client reads names fields of the API, not the machinery that checked them.
    assert not re.search(r"function|0x[0-9a-f]{4}|constrained|list\[|Body|_check", error["message"]), error["message"]
    assert len(error["message"]) < 600
    assert set(error) == {"message", "type", "param", "code"}


def assert_alive(client: httpx.Client) -> None:
    assert client.get("/health_generate").status_code == 200


@pytest.mark.parametrize("path", sorted({path for path, _ in BAD}))
def test_case_24_bad_bodies_are_refused_and_the_server_lives(client: httpx.Client, path: str) -> None:
    for body in [body for at, body in BAD if at == path]:
        try:
            assert_refused(client.post(path, json=body))
        except AssertionError as failure:
            raise AssertionError(f"{path} {str(body)[:200]}") from failure
    assert_alive(client)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", CHAT, "/jetspec/tree", "/jetspec/score"])
def test_case_24_bodies_that_are_not_json_are_refused(client: httpx.Client, path: str) -> None:
    for content in BAD_BYTES:
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", None):
            headers = {"Content-Type": kind} if kind else {}
            assert_refused(client.post(path, content=content, headers=headers))
    assert_alive(client)


def test_case_24_a_1_mb_prompt_is_refused_by_its_length(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"input_ids": [7] * 500_000})
    assert_refused(answer)
    assert "500000 tokens" in answer.json()["error"]["message"]
    assert_alive(client)


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_body_beyond_the_limit_is_413(client: httpx.Client, is_announced: bool) -> None:
    content = json.dumps({"text": "x" * 2**21}).encode()
    pieces = content if is_announced else (content[i : i + 65536] for i in range(0, len(content), 65536))
    answer = client.post("/generate", content=pieces, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert_refused(answer)
    assert_alive(client)


@pytest.mark.parametrize("text", [" ", "x", "<|im_end|>", "\x00", "\u200b", "🦊"])
def test_case_24_tiny_prompts_are_answered(client: httpx.Client, text: str) -> None:
    assert client.post("/generate", json={"text": text, "sampling_params": {"max_new_tokens": 1}}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": text, "max_tokens": 1}).status_code == 200
    messages = [{"role": "user", "content": text}]
    assert client.post(CHAT, json={"messages": messages, "max_tokens": 1}).status_code == 200
    assert client.post(CHAT, json={"messages": [{"role": "user", "content": ""}], "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("missing", [2, 1])
def test_case_18_prompts_up_to_the_context_are_answered(client: httpx.Client, missing: int) -> None:
    answer = client.post("/generate", json={"input_ids": [7] * (4096 - missing)})
    assert answer.status_code == 200
    assert answer.json()["meta_info"]["completion_tokens"] == missing


def test_unknown_fields_are_ignored_where_other_servers_ignore_them(client: httpx.Client) -> None:
    assert client.post("/generate", json={"text": "x", "novel": 1, "log_metrics": False}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "x", "novel": {"a": 1}}).status_code == 200


def test_wrong_methods_and_paths(client: httpx.Client) -> None:
    assert client.get("/generate").status_code == 405
    assert client.get("/generate").headers["allow"]
    assert client.get("/nothing").status_code == 404
    assert_refused(client.get("/generate"))
    assert_refused(client.get("/nothing"))


def test_a_bug_is_a_500_that_keeps_its_text_to_itself(server: LiveServer, client: httpx.Client) -> None:
    real, server.engine.flush_cache = server.engine.flush_cache, lambda: 1 / 0
    try:
        answer = client.post("/flush_cache")
    finally:
        server.engine.flush_cache = real
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error: ZeroDivisionError"
    while not server.logs:  # the report follows the answer
        threading.Event().wait(0.002)
    assert "ZeroDivisionError" in server.logs.pop()
    assert_alive(client)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": None}, "prompt: Input should be a valid string or a valid list"),
        ("/v1/completions", {"prompt": [-1]}, "prompt.0: Input should be greater than or equal to 0"),
        ("/v1/completions", {"prompt": "x", "stop": ["a", None]}, "stop.1: Input should be a valid string"),
        ("/v1/completions", {"prompt": "x", "stop": 5}, "stop: Input should be a valid string or a valid list"),
        ("/generate", {"input_ids": [3, -1]}, "input_ids.1: Input should be greater than or equal to 0"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type: "),
    ],
)
def test_the_message_names_the_place_and_what_it_may_hold(
    client: httpx.Client, path: str, body: object, message: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_a_wrong_prompt_among_several_is_named(client: httpx.Client) -> None:
    for path, body in (("/v1/completions", {"prompt": [[1], [259]]}), ("/generate", {"input_ids": [[1], [259]]})):
        assert client.post(path, json=body).json()["error"]["message"].endswith(", in prompt 1")
    assert "in prompt" not in client.post("/generate", json={"input_ids": [259]}).text
