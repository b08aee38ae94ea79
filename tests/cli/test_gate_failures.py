"""``jetspec gate`` when servers fail: counted, visible, a non-zero exit, no speed printed (cases 28, 29)."""

import _thread
import itertools
import json
import socket
import time

from support.mock_server import Script, mock_server


def test_case_29_one_failing_request_of_many_is_counted_and_the_rest_runs(jetspec, prompts):
    def status(path, number):
        return 500 if path == "/generate" and number == 3 and not failed else 0

    failed: list[int] = []

    def once(path, number):
        code = status(path, number)
        if code:
            failed.append(number)
        return code

    with mock_server(Script(status=once)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 6
    counts = result.document["summary"]["comparisons"]
    assert (counts["failed"], counts["identical"]) == (1, 3)
    assert result.document["summary"]["failed_requests"] == 1


def test_case_29_an_error_in_a_200_is_a_failure(jetspec, prompts):
    with mock_server(Script(error_in_200=4)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 6
    assert "scripted failure in a 200" in result.out
    assert "3/4 identical, 1 failed" in result.out


def test_case_28_a_server_that_answers_503_to_everything(jetspec, prompts, tmp_path):
    out, junit = tmp_path / "o.json", tmp_path / "j.xml"
    with mock_server(Script(status=lambda path, number: 503)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--out", out, "--junit", junit)
    assert result.code == 6
    assert "error: /get_server_info: status 503: scripted 503" in result.err
    assert '"outcome": "engine_failed"' in out.read_text()
    assert 'errors="1"' in junit.read_text()


def test_case_28_a_server_that_answers_503_to_generations(jetspec, prompts):
    busy = Script(status=lambda path, number: 503 if path == "/generate" and number > 0 else 0)
    with mock_server(busy) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 6
    assert result.document["summary"]["comparisons"]["failed"] == 4
    assert result.document["exit_code"] == 6


def test_case_28_a_server_that_dies_mid_run(jetspec, prompts):
    with mock_server(Script(dies_at=4)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 6
    counts = result.document["summary"]["comparisons"]
    assert (counts["identical"], counts["failed"]) == (1, 3)
    assert "does not answer any more" in result.document["comparisons"][-1]["detail"]


def test_case_28_nobody_listens(jetspec, prompts):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = jetspec("gate", "--prompts", prompts, "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert result.code == 6
    assert result.err.count("error: ") == 1


def test_case_28_no_speed_is_printed(jetspec, prompts):
    with mock_server(Script(dies_at=4)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert "tok/s" not in result.out + result.err


def test_a_certain_mismatch_goes_before_failed_requests(jetspec, prompts):
    def change(call, tokens):
        if call.is_tree:
            tokens[2] += 1
        return tokens

    with mock_server(Script(change=change, dies_at=5)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    counts = result.document["summary"]["comparisons"]
    assert counts["mismatch"]
    assert counts["failed"]
    assert result.code == 1


def test_a_slow_server_is_given_up(jetspec, prompts):
    slow = Script(status=lambda path, number: time.sleep(0.5 if path == "/generate" and number == 1 else 0) or 0)
    with mock_server(slow) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--timeout-s", "0.2", "--format", "json")
    assert result.code == 6
    assert "no answer in time" in str(result.document["comparisons"][0]["detail"])


def test_a_server_that_stays_busy(jetspec, prompts, monkeypatch):
    from jetspec_cli.serving import client

    monkeypatch.setattr(client, "BUSY_PATIENCE_S", 0.2)
    busy = Script(status=lambda path, number: 409 if path == "/jetspec/tree" and number > 0 else 0)
    with mock_server(busy) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 6
    assert "409" in result.err + result.out or "busy" in result.err + result.out


def test_a_server_that_is_busy_when_its_tree_is_put_back_changes_no_verdict(jetspec, prompts, monkeypatch):
    from jetspec_cli.serving import client

    monkeypatch.setattr(client, "BUSY_PATIENCE_S", 0.2)
    with mock_server() as (url, state):
        assert jetspec("gate", "--prompts", prompts, "--url", url).code == 0
        num_calls = state.paths().count("/jetspec/tree")
    calls = itertools.count()
    busy = Script(status=lambda path, _: 409 if path == "/jetspec/tree" and next(calls) >= num_calls - 1 else 0)
    with mock_server(busy) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert next(calls) >= num_calls, "it tried"
    assert result.code == 0
    assert "gate passed" in result.out


def test_case_27_what_was_compared_of_a_begun_prompt_is_kept(jetspec, prompts, tmp_path):
    def stopped(path, number):
        # Two oracles and the first tree are done, after one generation that warms up.
        if path == "/generate" and number == 4:
            _thread.interrupt_main()
            time.sleep(1)
        return 0

    out = tmp_path / "o.json"
    flags = ["--oracle", "linear,greedy", "--tree-width", "2,4", "--budget", "16", "--out", out]
    with mock_server(Script(status=stopped)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, *flags)
    document = json.loads(out.read_text())
    assert (result.code, document["exit_code"], document["summary"]["outcome"]) == (130, 130, "interrupted")
    assert [(row["prompt_id"], row["cell"], row["oracle"], row["verdict"]) for row in document["comparisons"]] == [
        ("text-1", "W2 B16", "linear", "identical"),
        ("text-1", "W2 B16", "greedy", "identical"),
    ]
    assert [run["label"] for run in document["runs"]] == ["linear", "greedy", "W2 B16"]
    assert "gate interrupted: 2/2 identical" in result.out
