"""``jetspec gate`` against scripted servers: every verdict, every exit code, and what the reports say."""

import pytest

from jetspec_engine.config import LINEAR
from support.mock_server import Script, mock_server


def wrong_at(position: int, *, prompt: bytes = b"two"):
    """A tree that emits another token at one position of one prompt."""

    def change(call, tokens):
        if call.is_tree and bytes(call.prompt_ids) == prompt:
            tokens[position] += 1
        return tokens

    return change


def test_R02_identical_tokens_pass(jetspec, prompts):
    with mock_server() as (url, state):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 0
    assert "4/4 identical" in result.out
    assert "gate passed" in result.out
    assert state.tree["width"] == 4


def test_R02_the_cache_is_flushed_before_every_measured_prompt(jetspec, prompts):
    with mock_server() as (url, state):
        jetspec("gate", "--prompts", prompts, "--url", url, "--oracle", "linear,greedy", "--tree-width", "4,8")
    paths = [path for path in state.paths() if path in ("/generate", "/flush_cache", "/jetspec/tree")]
    measured = paths[paths.index("/generate") + 1 :]
    generations = [index for index, path in enumerate(measured) if path == "/generate"]
    assert len(generations) == 4 * (2 + 2)
    assert all(measured[index - 2 : index] == ["/jetspec/tree", "/flush_cache"] for index in generations)


def test_R24_the_warm_up_prompt_is_not_in_the_set(jetspec, prompts):
    with mock_server() as (url, state):
        jetspec("gate", "--prompts", prompts, "--url", url)
    first, *rest = [str(body["input_ids"]) for path, body in state.log if path == "/generate"]
    assert first not in rest


def test_the_oracles_are_the_linear_path_and_plain_decoding(jetspec, prompts):
    with mock_server() as (url, state):
        jetspec("gate", "--prompts", prompts, "--url", url, "--oracle", "linear,greedy")
    trees = [body for path, body in state.log if path == "/jetspec/tree" and body]
    assert trees[0] == LINEAR.to_mapping()
    assert trees[1] == {**LINEAR.to_mapping(), "budget": 1}


def test_R51_a_mismatch_is_reported_with_both_tokens_logits_gap_and_round(jetspec, prompts):
    with mock_server(Script(change=wrong_at(5))) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 1
    (found,) = [row for row in result.document["comparisons"] if row["verdict"] != "identical"]
    report = found["mismatch"]
    right = report["oracle"]["token_id"]
    assert (found["prompt_id"], found["verdict"], report["position"]) == ("text-2", "mismatch", 5)
    assert report["candidate"] == {"token_id": right + 1, "text": f" t{right + 1}"}
    assert report["oracle"]["text"] == f" t{right}"
    # Prefill gives token 0, rounds of three follow: token 5 is the second of round 2.
    assert report["round"] == {"index": 2, "depth": 2, "num_tokens": 3, "source": "draft"}
    assert report["gap_nats"] == pytest.approx(5.0)
    assert (report["ulp"], report["gap_ulp"], report["verdict"]) == (0.125, 40.0, "logic")
    assert [row["token_id"] for row in report["logits"]["oracle"]["top"]] == [right, right + 1]
    assert result.document["summary"]["outcome"] == "failed"


def test_R51_the_table_shows_prompt_position_and_both_tokens(jetspec, prompts):
    with mock_server(Script(change=wrong_at(5))) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 1
    assert "prompt text-2, W4 B16 against linear" in result.out
    assert "token 5: oracle " in result.out
    assert "gate FAILED: 3/4 identical, 1 mismatches" in result.out


def test_R51_near_ties_fail_unless_allowed_and_are_counted(jetspec, prompts):
    with mock_server(Script(change=wrong_at(5), gap=0.25)) as (url, _):
        strict = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
        lenient = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json", "--allow-near-ties")
    assert (strict.code, lenient.code) == (1, 0)
    for result in (strict, lenient):
        assert result.document["summary"]["comparisons"]["near_tie"] == 1
        assert result.document["summary"]["comparisons"]["mismatch"] == 0


def test_a_gap_just_over_two_ulp_is_logic_even_when_near_ties_are_allowed(jetspec, prompts):
    with mock_server(Script(change=wrong_at(5), gap=0.26)) as (url, _):
        assert jetspec("gate", "--prompts", prompts, "--url", url, "--allow-near-ties").code == 1


def test_R18_two_wrong_tokens_that_tie_with_each_other_are_logic(jetspec, prompts):
    def change(call, tokens):
        if bytes(call.prompt_ids) == b"two":
            tokens[5] += 2 if call.is_tree else 1
        return tokens

    with mock_server(Script(change=change)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json", "--allow-near-ties")
    (found,) = [row for row in result.document["comparisons"] if row["verdict"] != "identical"]
    # Both are 5 nats below the target's own choice, which is what the gap is measured from.
    assert (result.code, found["verdict"], found["mismatch"]["gap_ulp"]) == (1, "mismatch", 40.0)


@pytest.mark.parametrize(("gap", "oracle_gap"), [(0.25, 5.0), (5.0, 0.25)])
def test_R51_two_servers_logits_are_both_shown_and_the_wider_gap_decides(jetspec, prompts, gap, oracle_gap):
    candidate = Script(change=wrong_at(5), gap=gap)
    with mock_server(candidate) as (url, _), mock_server(Script(gap=oracle_gap)) as (oracle_url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--oracle-url", oracle_url, "--format", "json")
    (report,) = [row["mismatch"] for row in result.document["comparisons"] if row["mismatch"]]
    assert {side: found["gap_nats"] for side, found in report["logits"].items()} == {
        "oracle": pytest.approx(oracle_gap),
        "candidate": pytest.approx(gap),
    }
    assert (report["verdict"], report["gap_nats"]) == ("logic", pytest.approx(5.0))


def test_a_near_tie_of_bfloat16_is_logic_in_float32(jetspec, prompts):
    script = Script(change=wrong_at(5), gap=0.25, logits_dtype="float32")
    with mock_server(script) as (url, _):
        assert jetspec("gate", "--prompts", prompts, "--url", url, "--allow-near-ties").code == 1


def test_a_tree_that_stops_early_is_a_mismatch_of_logic(jetspec, prompts):
    cut = Script(change=lambda call, tokens: tokens[:9] if call.is_tree else tokens, gap=0.0)
    with mock_server(cut) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json", "--allow-near-ties")
    assert result.code == 1
    report = result.document["comparisons"][0]["mismatch"]
    assert (report["position"], report["candidate"]["token_id"], report["verdict"]) == (9, None, "logic")


def test_case_26_an_oracle_that_disagrees_with_itself_is_inconclusive(jetspec, prompts):
    def change(call, tokens):
        if not call.is_tree and call.repeats == 0 and bytes(call.prompt_ids) == b"two":
            tokens[3] += 1
        return tokens

    with mock_server(Script(change=change)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 5
    counts = result.document["summary"]["comparisons"]
    assert (counts["unstable_oracle"], counts["mismatch"], counts["identical"]) == (1, 0, 3)
    (row,) = [row for row in result.document["comparisons"] if row["verdict"] == "unstable_oracle"]
    assert row["detail"] == "the oracle disagrees with itself at token 3"


def test_R54_an_oracle_whose_second_run_failed_runs_again_for_the_next_mismatch(jetspec, prompts):
    refused, oracle_calls = [], []

    def status(path, number):
        # The warm-up, the oracle and the tree have been; this is the oracle again.
        is_it = path == "/generate" and number == 3 and not refused
        refused.extend([number] if is_it else [])
        return 500 if is_it else 0

    def change(call, tokens):
        if bytes(call.prompt_ids) == b"one":
            oracle_calls.extend([] if call.is_tree else [call])
            tokens[3] += 1 if call.is_tree else 2 * (len(oracle_calls) > 1)
        return tokens

    with mock_server(Script(change=change, status=status)) as (url, _):
        words = ("--prompts", prompts, "--url", url, "--tree-width", "4", "--budget", "16,32", "--format", "json")
        result = jetspec("gate", *words)
    verdicts = [row["verdict"] for row in result.document["comparisons"] if row["prompt_id"] == "text-1"]
    assert refused == [3]
    assert verdicts == ["mismatch", "unstable_oracle"]


def test_R54_repeat_finds_an_oracle_that_is_unstable_where_the_tree_agrees(jetspec, prompts):
    def change(call, tokens):
        if not call.is_tree and call.repeats == 1:
            tokens[3] += 1
        return tokens

    with mock_server(Script(change=change)) as (url, _):
        once = jetspec("gate", "--prompts", prompts, "--url", url)
    with mock_server(Script(change=change)) as (url, _):
        twice = jetspec("gate", "--prompts", prompts, "--url", url, "--repeat", "2")
    assert (once.code, twice.code) == (0, 5)
    assert "unstable oracle: prompt text-1" in twice.out


def test_R54_an_oracle_that_ends_elsewhere_the_second_time_is_unstable(jetspec, prompts):
    def change(call, tokens):
        is_first = not call.is_tree and call.repeats == 0 and bytes(call.prompt_ids) == b"two"
        return tokens[:9] if is_first else tokens

    with mock_server(Script(change=change)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    (row,) = [row for row in result.document["comparisons"] if row["verdict"] != "identical"]
    assert (result.code, row["verdict"]) == (5, "unstable_oracle")
    assert row["detail"] == "the oracle disagrees with itself at token 9"


def test_R54_repeat_finds_a_tree_that_is_unstable(jetspec, prompts):
    def change(call, tokens):
        if call.is_tree and call.repeats == 2:
            tokens[3] += 1
        return tokens

    with mock_server(Script(change=change)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--repeat", "3", "--format", "json")
    assert result.code == 1
    assert {row["attempt"] for row in result.document["comparisons"] if row["verdict"] == "mismatch"} == {2}


def test_R52_a_token_that_oracle_and_tree_share_but_the_target_does_not_want_fails(jetspec, prompts):
    def change(call, tokens):
        tokens[3] += 1
        return tokens

    with mock_server(Script(change=change)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 1
    assert result.document["summary"]["comparisons"]["identical"] == 4
    faults = result.document["faults"]
    assert {fault["check"] for fault in faults} == {"teacher_forced"}
    assert {fault["report"][0]["position"] for fault in faults} == {3}


def test_R52_the_check_is_said_to_be_missing_where_the_server_cannot_score(jetspec, prompts):
    with mock_server(Script(can_score=False)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 0
    assert result.document["summary"]["checks"]["teacher_forced"]["num_checked"] == 0
    assert any("no scoring" in note for note in result.document["notes"])


def test_every_record_is_checked_for_its_counters(jetspec, prompts):
    with mock_server(Script(miscounts=True)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 1
    assert result.document["summary"]["comparisons"]["identical"] == 4
    assert {fault["check"] for fault in result.document["faults"]} == {"accounting"}
    assert "the accept histogram holds" in result.document["faults"][0]["detail"]


def test_case_34_accept_length_is_pooled_by_cell_and_shown_by_class(jetspec, prompts):
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    (cell,) = result.document["summary"]["cells"]
    # 16 tokens: one from the prefill, five rounds of three.
    assert cell["accept_length"] == pytest.approx(16 / 6)
    assert cell["accept_length_by_class"] == {"chat": pytest.approx(16 / 6), "prose": pytest.approx(16 / 6)}


def test_case_33_repeated_prompts_are_reported(jetspec, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "x"}\n')
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", path, "--url", url)
    assert result.code == 0
    assert "note: prompts a and b ask the same" in result.out


def test_case_32_33_cached_tokens_and_flushes_are_recorded(jetspec, prompts):
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--format", "json")
    runs = result.document["runs"]
    assert all(run["generation"]["num_cached_tokens"] == 0 and run["is_cache_flushed"] for run in runs)
