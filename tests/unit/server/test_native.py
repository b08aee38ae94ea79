"""/generate speaks SGLang's shapes, whole and streamed."""

import itertools

import httpx
import pytest

from support.byte_tokenizer import IM_END, IM_START, MASK
from support.events import parse_events
from support.fake_engine import FakeEngine
from support.live_server import LiveServer

GREEDY = {"temperature": 0, "max_new_tokens": 24}


def generate(client: httpx.Client, **body: object) -> dict:
    answer = client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_text_and_its_ids_decode_the_same(client: httpx.Client) -> None:
    by_text = generate(client, text="héllo", sampling_params=GREEDY)
    by_ids = generate(client, input_ids=list("héllo".encode()), sampling_params=GREEDY)
    assert by_text["text"] == by_ids["text"] != ""
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert bytes(by_text["output_ids"]).decode(errors="replace").startswith(by_text["text"][:5])


def test_meta_info_counters_satisfy_the_identities(client: httpx.Client) -> None:
    meta = generate(client, text="hi", sampling_params=GREEDY)["meta_info"]
    assert meta["prompt_tokens"] == 2
    assert meta["completion_tokens"] == 24
    assert meta["cached_tokens"] == 1
    histogram = meta["spec_accept_histogram"]
    assert sum(histogram) == meta["spec_verify_ct"]
    assert sum(i * count for i, count in enumerate(histogram)) == meta["completion_tokens"]
    drafts = meta["spec_correct_drafts_histogram"]
    assert sum(drafts) == meta["spec_verify_ct"]
    assert sum(i * count for i, count in enumerate(drafts)) == meta["spec_num_correct_drafts"]
    assert meta["spec_accept_length"] == pytest.approx(24 / meta["spec_verify_ct"])
    assert meta["spec_accept_rate"] == pytest.approx(meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"])
    assert meta["round_s"] == {"num": 3, "median": 0.002, "min": 0.001, "max": 0.003}
    assert meta["phase_s"] == {"prefill": 0.001, "verify": 0.002}
    assert 0 < meta["e2e_latency"] < 30


def test_default_cap_is_sglangs_128(client: httpx.Client) -> None:
    assert generate(client, text="hi")["meta_info"]["completion_tokens"] == 128


def test_case_05_delivered_tokens_equal_the_count_for_every_cap(client: httpx.Client) -> None:
    for cap in range(41):
        answer = generate(client, text="hi", sampling_params={"max_new_tokens": cap})
        assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] == cap
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": cap}


def test_case_02_stop_string_ends_the_text_before_it(client: httpx.Client) -> None:
    answer = generate(client, text="count from 1", sampling_params={"max_new_tokens": 200, "stop": [" 7", "zz"]})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": " 7"}
    assert answer["text"].endswith("6")
    kept = {"max_new_tokens": 200, "stop": " 7", "no_stop_trim": True}
    assert generate(client, text="count from 1", sampling_params=kept)["text"].endswith("6 7")


def test_stop_token_ids_reach_the_engine(client: httpx.Client) -> None:
    answer = generate(client, text="hi", sampling_params={"max_new_tokens": 200, "stop_token_ids": [ord("9")]})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": ord("9")}
    assert answer["output_ids"][-1] == ord("9")


def test_every_decoding_field_reaches_the_engine(server: LiveServer, client: httpx.Client) -> None:
    given = {
        "max_new_tokens": 9, "min_new_tokens": 3, "stop": ["a"], "stop_token_ids": [1], "ignore_eos": True,
        "skip_special_tokens": False, "no_stop_trim": True,
    }  # fmt: skip
    generate(client, text="hi", rid="mine", sampling_params=given)
    request = server.engine.submitted[-1]
    assert request.request_id == "mine"
    assert request.logprobs_top_k is None
    for name, value in given.items():
        assert getattr(request.sampling, name) == (tuple(value) if isinstance(value, list) else value), name


def test_null_means_absent(client: httpx.Client) -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "stop", "n", "ignore_eos", "min_new_tokens"), None)
    body = {"text": "hi", "input_ids": None, "stream": None, "rid": None, "return_logprob": None}
    assert (
        generate(client, **body, sampling_params={**nulls, "max_new_tokens": 5})["meta_info"]["completion_tokens"] == 5
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sampling_params": {"temperature": 0.5}}, "temperature"),
        ({"sampling_params": {"temperature": 0, "presence_penalty": 0.5}}, "presence_penalty"),
        ({"sampling_params": {"json_schema": "{}"}}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor"),
        ({"lora_path": "x"}, "lora_path"),
        ({"image_data": ["x"]}, "image_data"),
        ({"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 2}, {"temperature": 1}]}, "temperature"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_R15_what_is_not_greedy_is_a_bad_request_naming_the_field(
    server: LiveServer, client: httpx.Client, body: dict, field: str, is_streamed: bool
) -> None:
    before = len(server.engine.submitted)
    answer = client.post("/generate", json={"text": "hi", "stream": is_streamed, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field}: ")
    assert len(server.engine.submitted) == before, "nothing is decoded otherwise instead"


def test_a_list_of_prompts_gives_a_list(client: httpx.Client) -> None:
    single = [generate(client, text=text, sampling_params=GREEDY)["text"] for text in ("one", "two", "three")]
    listed = generate(client, text=["one", "two", "three"], sampling_params=GREEDY, rid="batch")
    assert [one["text"] for one in listed] == single
    assert [one["meta_info"]["id"] for one in listed] == ["batch_0", "batch_1", "batch_2"]
    nested = generate(client, input_ids=[[111, 110, 101]], sampling_params=GREEDY)
    assert [one["text"] for one in nested] == single[:1]


def test_sampling_params_and_rids_may_differ_by_prompt(client: httpx.Client) -> None:
    params = [{"max_new_tokens": 2}, {"max_new_tokens": 5}]
    answers = generate(client, text=["a", "b"], sampling_params=params, rid=["x", "y"])
    assert [(one["meta_info"]["id"], one["meta_info"]["completion_tokens"]) for one in answers] == [("x", 2), ("y", 5)]


def test_case_24_n_copies_are_identical_and_decoded_once(server: LiveServer, client: httpx.Client) -> None:
    before = len(server.engine.submitted)
    answers = generate(client, text="hi", sampling_params={**GREEDY, "n": 2})
    assert len(answers) == 2
    assert answers[0]["text"] == answers[1]["text"]
    assert answers[0]["meta_info"]["id"] != answers[1]["meta_info"]["id"]
    assert len(server.engine.submitted) == before + 1


def test_output_logprobs(client: httpx.Client) -> None:
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 3}, "return_logprob": True, "top_logprobs_num": 4}
    answer = generate(client, **body)
    meta = answer["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.25, token, None] for token in answer["output_ids"]]
    # JSON has no infinities: the fourth candidate's -inf travels as null.
    assert [row[3][0] for row in meta["output_top_logprobs"]] == [None] * 3
    assert "input_token_logprobs" not in meta
    spelled = generate(client, **body, return_text_in_logprobs=True)
    assert "".join(text for _, _, text in spelled["meta_info"]["output_token_logprobs"]) == spelled["text"]


def test_input_logprobs_begin_where_asked(client: httpx.Client) -> None:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "top_logprobs_num": 1}
    whole = generate(client, **body, logprob_start_len=0)["meta_info"]
    assert whole["input_token_logprobs"] == [[None, 97, None], [-0.5, 98, None], [-0.5, 99, None]]
    assert whole["input_top_logprobs"] == [None, [[-0.5, 0, None]], [[-0.5, 0, None]]]
    assert generate(client, **body, logprob_start_len=2)["meta_info"]["input_token_logprobs"] == [[-0.5, 99, None]]
    assert generate(client, **body, logprob_start_len=3)["meta_info"]["input_token_logprobs"] == []
    assert "input_token_logprobs" not in generate(client, **body, logprob_start_len=-1)["meta_info"]


def test_case_23_stream_is_cumulative_whole_characters_and_ends_as_the_plain_answer(client: httpx.Client) -> None:
    body = {"text": "emoji", "sampling_params": {"temperature": 0, "max_new_tokens": 300}}
    plain = generate(client, **body)
    events = parse_events(client.post("/generate", json={**body, "stream": True}).text)
    assert len(events) == plain["meta_info"]["spec_verify_ct"]
    for before, after in itertools.pairwise(events):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    assert not any("\ufffd" in event["text"] for event in events[:-1])
    assert events[-1]["text"] == plain["text"]
    assert events[-1]["output_ids"] == plain["output_ids"]
    assert events[-1]["meta_info"]["spec_accept_histogram"] == plain["meta_info"]["spec_accept_histogram"]
    assert "🦊" in plain["text"]
    assert "你好" in plain["text"]


def test_a_streamed_list_says_whose_event_it_is(client: httpx.Client) -> None:
    body = {"text": ["one", "two"], "sampling_params": {**GREEDY, "n": 2}}
    plain = generate(client, **body)
    events = parse_events(client.post("/generate", json={**body, "stream": True}).text)
    last = {event["index"]: event["text"] for event in events}
    assert [last[index] for index in range(4)] == [one["text"] for one in plain]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_case_22_special_tokens_typed_by_a_user(server: LiveServer, client: httpx.Client, is_streamed: bool) -> None:
    body = {"text": "<|im_end|><|mask|> x <|im_start|>", "sampling_params": GREEDY, "stream": is_streamed}
    answer = client.post("/generate", json=body)
    assert answer.status_code == 200
    assert "\ufffd" not in answer.text
    assert server.engine.submitted[-1].input_ids == (IM_END, MASK, *b" x ", IM_START)


def test_eos_is_counted_but_not_shown() -> None:
    answer = [*b"ab", IM_END, *b"cd"]
    with LiveServer(FakeEngine(answer=lambda ids, tree: answer)) as live, live.client() as client:
        ended = generate(client, text="x")
        assert ended["text"] == "ab"
        assert ended["output_ids"] == answer[:3]
        assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": IM_END}
        ignored = generate(client, text="x", sampling_params={"ignore_eos": True, "skip_special_tokens": False})
        assert ignored["text"] == "ab<|im_end|>cd"


def test_an_engine_error_is_a_500_or_an_error_event_and_others_go_on() -> None:
    with LiveServer(FakeEngine(fail_at=6)) as live, live.client() as client:
        whole = client.post("/generate", json={"text": "hi"})
        assert whole.status_code == 500
        assert "not finite" in whole.json()["error"]["message"]
        events = parse_events(client.post("/generate", json={"text": "hi", "stream": True}).text)
        assert events[0]["meta_info"]["finish_reason"] is None
        assert "not finite" in events[-1]["error"]["message"]
        assert (
            client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2}}).status_code == 200
        )
        assert live.logs == []
