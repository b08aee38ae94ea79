"""``jetspec bench`` beside another server, and against servers that do not list their model."""

import pytest

from support.mock_server import Handler, Script
from support.stream_server import stream_server


def slow(call, tokens):
    import time

    time.sleep(0.03)
    return tokens


def test_compare_url_interleaves_another_server_and_gives_a_ratio_with_an_interval(jetspec, prompts):
    with stream_server() as (url, _), stream_server(Script(kind="openai", change=slow)) as (other, state):
        words = ("bench", "--prompts", prompts, "--url", url, "--compare-url", other, "--compare", "linear")
        result = jetspec(*words, "--format", "json")
        table = jetspec(*words, "--repeat", "1").out
    assert result.code == 0
    cells = {cell["label"]: cell for cell in result.document["cells"]}
    assert list(cells) == ["W4 B16", "linear", "other server"]
    assert cells["other server"]["role"] == "other"
    assert cells["other server"]["gate"]["outcome"] == "not gated"
    assert cells["W4 B16"]["gate"]["outcome"] == "passed"
    speedup = cells["W4 B16"]["against"]["other server"]["speedup"]
    assert speedup["low"] > 1, "the other server sleeps"
    assert [server["role"] for server in result.document["servers"]] == ["compared", "measured"]
    assert "over other server" in table
    assert state.num_calls == 2 + 12 + 2 + 4, "warm-up and measured requests of both commands"


def test_case_28_the_other_server_dies_mid_run(jetspec, prompts):
    with stream_server() as (url, _), stream_server(Script(kind="openai", dies_at=4)) as (other, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--compare-url", other)
    assert result.code == 6
    assert other in result.err


def test_nobody_listens_at_the_other_url(jetspec, prompts):
    with stream_server() as (url, state):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--compare-url", "http://127.0.0.1:9")
        assert state.num_calls == 0
    assert result.code == 6


@pytest.mark.parametrize("listed", [[], [{"id": "another"}]])
def test_a_model_the_server_does_not_list_is_asked_for_by_name(jetspec, prompts, monkeypatch, listed):
    monkeypatch.setattr("support.stream_server.StreamHandler.on_v1_models", lambda self, body: {"data": listed})
    with stream_server(Script(kind="openai")) as (url, state):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--model", "mine", "--repeat", "1")
    assert result.code == 0
    asked = {body["model"] for path, body in state.log if path.startswith("/v1/") and body}
    assert asked == {"mine"}


def test_a_stock_sglang_server_says_what_it_runs(jetspec, prompts, monkeypatch):
    stock = {
        "version": "0.5.17", "model_path": "/models/target", "speculative_draft_model_path": "/models/head",
        "speculative_algorithm": "DFLASH", "device": "cuda", "dtype": "auto", "attention_backend": None,
        "decode_attention_backend": "fa3", "page_size": 1, "tp_size": 1, "enable_deterministic_inference": False,
    }  # fmt: skip
    monkeypatch.setattr("support.stream_server.StreamHandler.on_get_server_info", lambda self, body: stock)
    with stream_server(Script(kind="sglang")) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--format", "json")
    assert result.code == 0
    assert result.document["servers"][0]["info"] == {
        "engine": "sglang", "version": "0.5.17", "target": "target", "head": "head", "algorithm": "DFLASH",
        "device": "cuda", "attention": "fa3", "page_size": 1, "tp_size": 1, "is_deterministic": False,
    }  # fmt: skip
    [cell] = result.document["cells"]
    assert cell["accept_length"] > 1, "stock servers count their verifies"
    assert cell["round_s"]["num"] > 0


@pytest.mark.parametrize(
    ("target", "paths"), [("mock-target", {"/generate"}), ("another", {"/generate", "/v1/chat/completions"})]
)
def test_another_server_of_the_same_target_is_asked_the_same_token_ids(jetspec, prompts, monkeypatch, target, paths):
    own = Handler.on_get_server_info

    def info(handler, body):
        is_ours = handler.server.state.script.kind == "jetspec"
        return own(handler, body) if is_ours else {"version": "0", "model_path": f"/models/{target}"}

    monkeypatch.setattr("support.stream_server.StreamHandler.on_get_server_info", info)
    with stream_server() as (url, _), stream_server(Script(kind="sglang")) as (other, state):
        words = ("--prompts", prompts, "--url", url, "--compare-url", other, "--repeat", "1", "--format", "json")
        result = jetspec("bench", *words)
    assert result.code == 0
    # The text prompts' warm-up aside, only chats take another path.
    assert {path for path, body in state.log if body and "flush" not in path} == paths
    other_cell = result.document["cells"][-1]
    assert other_cell["label"] == "other server"
    assert other_cell["round_s"] is not None
