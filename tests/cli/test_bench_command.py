"""``jetspec bench`` against scripted servers: what is measured, compared, counted and refused."""

import itertools
import json
import time

import pytest

from support.mock_server import ROUND, Script
from support.stream_server import CUT_OFF, ERROR_EVENT, stream_server

SPEED_WORDS = ("tok/s", "TTFT", "TPOT", "over linear")


def test_R06_bench_measures_times_speeds_and_accept_length(jetspec, prompts):
    with stream_server() as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 0
    document = result.document
    assert (document["schema_version"], document["kind"], document["outcome"]) == (1, "bench", "done")
    [cell] = document["cells"]
    assert cell["label"] == "W4 B16"
    assert cell["gate"]["outcome"] == "not gated"
    assert cell["num_requests"] == 4 * 3
    # 16 tokens a prompt: the prefill's one, then 15 in rounds of three.
    assert cell["accept_length"] == pytest.approx(16 / (1 + 15 / ROUND))
    assert set(cell["accept_length_by_class"]) == {"chat", "prose"}
    histogram = cell["accept_histogram"]
    assert sum(size * count for size, count in enumerate(histogram)) == 12 * 16
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert 0 < cell[name]["p50"] <= cell[name]["p90"] <= cell[name]["p99"]
    assert cell["tok_s"]["min"] <= cell["tok_s"]["value"] <= cell["tok_s"]["max"]
    assert len(cell["tok_s_by_repeat"]) == 3
    assert document["environment"]["versions"]["jetspec"]
    assert document["configuration"]["num_prompts"] == 4


def test_tpot_comes_from_token_counts(jetspec, prompts):
    with stream_server() as (url, _):
        result = jetspec(
            "bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--out", prompts.parent / "o.json"
        )
    assert result.code == 0
    lines = (prompts.parent / "o.requests.ndjson").read_text().splitlines()
    rows = [json.loads(line) for line in lines][1:]
    assert len(rows) == 4
    for row in rows:
        assert row["tpot_s"] == pytest.approx((row["e2e_s"] - row["ttft_s"]) / 15)


def test_a_server_that_others_keep_busy_loses_nothing_that_was_measured(jetspec, prompts, monkeypatch):
    from jetspec_cli.serving import client

    monkeypatch.setattr(client, "BUSY_PATIENCE_S", 0.1)
    switches = itertools.count()
    busy = Script(status=lambda path, _: 409 if path == "/jetspec/tree" and next(switches) >= 12 else 0)
    out = prompts.parent / "o.json"
    with stream_server(busy) as (url, _):
        words = ("--prompts", prompts, "--url", url, "--compare", "linear", "--repeat", "2", "--out", out)
        result = jetspec("bench", *words)
    assert result.code == 6
    assert "busy" in result.err + result.out
    document = json.loads(out.read_text())
    assert 0 < sum(cell["num_failed"] for cell in document["cells"]) < 16
    assert all(cell["num_requests"] == 8 for cell in document["cells"])
    rows = [json.loads(line) for line in (prompts.parent / "o.requests.ndjson").read_text().splitlines()[1:]]
    assert [row["is_ok"] for row in rows].count(True) >= 4


def test_R24_case_33_warm_up_is_none_of_the_prompts_and_the_cache_is_flushed_before_each(jetspec, prompts):
    with stream_server() as (url, state):
        assert jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "2").code == 0
    generations = [(path, body) for path, body in state.log if path in ("/generate", "/flush_cache")]
    measured = [(before[0], body) for before, (path, body) in itertools.pairwise(generations)
                if path == "/generate"][2:]  # fmt: skip
    assert [before for before, _ in measured] == ["/flush_cache"] * 8
    sent = [tuple(body["input_ids"]) for path, body in generations if path == "/generate"]
    assert not set(sent[:2]) & set(sent[2:])


def test_R16_compare_interleaves_and_states_the_break_even(jetspec, prompts):
    with stream_server() as (url, state):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--compare", "linear,plain", "--format", "json")
    assert result.code == 0
    cells = {cell["label"]: cell for cell in result.document["cells"]}
    assert list(cells) == ["W4 B16", "linear", "plain"]
    assert cells["W4 B16"]["gate"]["verdicts"] == {"identical": 12}
    assert cells["linear"]["gate"]["outcome"] == "oracle"
    against = cells["W4 B16"]["against"]
    for baseline in ("linear", "plain"):
        speedup = against[baseline]["speedup"]
        assert speedup["low"] <= speedup["value"] <= speedup["high"]
        assert speedup["num_units"] == 4
        assert against[baseline]["accept_ratio"] == 1.0
    trees = [(body["width"], body["budget"]) for path, body in state.log if path == "/jetspec/tree" and body]
    measured = trees[3:-1]
    # Every prompt visits all three arms before the next, each time beginning with another one.
    visits = [measured[place : place + 3] for place in range(0, len(measured), 3)]
    assert all(len(set(visit)) == 3 for visit in visits)
    assert len({visit[0] for visit in visits}) == 3
    assert trees[-1] == (4, 16), "the tree that ran before runs again"


def test_the_table_says_the_same(jetspec, prompts):
    with stream_server() as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--compare", "linear")
    assert result.code == 0
    assert "over linear [95 %]" in result.out
    assert result.out.rstrip().endswith("done (24 requests, 0 failed)")


@pytest.mark.parametrize("output", ["table", "md", "csv", "json"])
def test_R16_every_format_holds_both_sides_of_the_break_even(jetspec, prompts, output):
    with stream_server() as (url, _):
        words = ("bench", "--prompts", prompts, "--url", url, "--compare", "linear", "--repeat", "1")
        result = jetspec(*words, "--format", output)
    assert result.code == 0
    for name in ("accept ratio", "step cost ratio"):
        assert name in result.out or name.replace(" ", "_") in result.out


@pytest.mark.parametrize("output", ["csv", "md"])
def test_other_formats(jetspec, prompts, output):
    with stream_server() as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--format", output)
    assert result.code == 0
    assert ("| cell |" if output == "md" else "label,rule,width") in result.out


def test_a_wrong_tree_fails_and_gets_no_speed(jetspec, prompts):
    script = Script(change=lambda call, tokens: [tokens[0] + 1, *tokens[1:]] if call.is_tree else tokens)
    with stream_server(script) as (url, _):
        words = ("bench", "--prompts", prompts, "--url", url, "--compare", "linear", "--repeat", "1")
        result = jetspec(*words, "--format", "json")
        table = jetspec(*words)
    assert result.code == table.code == 1
    tree, linear = result.document["cells"]
    assert tree["gate"]["outcome"] == "failed"
    assert tree["gate"]["findings"][0]["mismatch"]["verdict"] == "logic"
    assert tree["tok_s"] is tree["ttft_s"] is tree["round_s"] is None
    assert tree["against"] == {}
    assert linear["tok_s"]["value"] > 0
    assert table.out.splitlines()[1].startswith("W4 B16  failed (4 mismatch)")
    assert "withheld" in table.out


def test_case_26_an_unstable_oracle_is_5(jetspec, prompts):
    def change(call, tokens):
        return tokens if call.is_tree else [tokens[0] + call.number, *tokens[1:]]

    with stream_server(Script(change=change)) as (url, _):
        words = ("bench", "--prompts", prompts, "--url", url, "--compare", "linear", "--repeat", "1")
        result, as_json = jetspec(*words), jetspec(*words, "--format", "json")
    assert result.code == as_json.code == 5
    assert "unstable_oracle" in result.out
    # What is undecided gets no speed either; how much was accepted is known.
    tree = as_json.document["cells"][0]
    assert (tree["gate"]["outcome"], tree["tok_s"], tree["round_s"], tree["against"]) == (
        "inconclusive",
        None,
        None,
        {},
    )
    assert tree["accept_length"] > 1


def test_counters_that_contradict_themselves_are_a_failed_gate_even_without_an_oracle(jetspec, prompts):
    with stream_server(Script(miscounts=True)) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--format", "json")
    assert result.code == 1
    assert result.document["cells"][0]["tok_s"] is None


@pytest.mark.parametrize("fault", [ERROR_EVENT, CUT_OFF])
def test_case_29_one_failing_stream_of_many_is_counted_and_6(jetspec, prompts, fault):
    with stream_server(faults={4: fault}) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 6
    document = result.document
    assert document["outcome"] == "engine_failed"
    assert document["summary"] == {**document["summary"], "num_requests": 12, "num_failed": 1}
    assert document["failures"][0]["error"]
    assert document["cells"][0]["num_failed"] == 1
    assert document["cells"][0]["tok_s"]["value"] > 0


def test_case_28_a_server_that_refuses_everything_is_6_and_no_speed_is_printed(jetspec, prompts):
    script = Script(status=lambda path, number: 503 if path == "/generate" and number == 0 else 0)
    with stream_server(script) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url)
    assert result.code == 6
    assert not any(word in result.out for word in SPEED_WORDS)
    assert "503" in result.err


def test_case_28_503_after_the_warm_up_fails_every_request_without_a_speed(jetspec, prompts):
    script = Script(status=lambda path, number: 503 if path == "/generate" and number >= 2 else 0)
    with stream_server(script) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url)
        as_json = jetspec("bench", "--prompts", prompts, "--url", url, "--format", "json")
    assert result.code == 6
    assert not any(word in result.out for word in SPEED_WORDS)
    assert "12 requests, 12 failed" in result.out
    assert as_json.code == 6


def test_case_28_a_server_that_dies_keeps_what_was_measured(jetspec, prompts, tmp_path):
    with stream_server(Script(dies_at=5)) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--out", tmp_path / "o.json")
    assert result.code == 6
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["error"].endswith("does not answer any more")
    assert document["summary"]["num_requests"] == 3


def test_case_28_nobody_listens(jetspec, prompts):
    result = jetspec("bench", "--prompts", prompts, "--url", "http://127.0.0.1:9")
    assert result.code == 6
    assert result.out == ""


def test_an_openai_server_is_measured_as_it_runs(jetspec, prompts):
    with stream_server(Script(kind="openai")) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--format", "json")
        refused = jetspec("bench", "--prompts", prompts, "--url", url, "--compare", "linear")
    assert result.code == 0
    [cell] = result.document["cells"]
    assert cell["label"] == "as started"
    assert cell["tok_s"]["value"] > 0
    assert cell["accept_length"] is None
    assert "no cache flush, so the cache state is unknown" in result.document["notes"]
    assert refused.code == 2
    assert "cannot switch trees" in refused.err


def test_without_token_counts_there_are_times_and_no_token_speeds(jetspec, prompts):
    with stream_server(Script(kind="openai"), counts_tokens=False) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--format", "json")
    [cell] = result.document["cells"]
    assert cell["tok_s"] is None
    assert cell["tpot_s"] is None
    assert cell["e2e_s"]["p50"] > 0
    assert "the server counts no tokens, so there are no speeds by token" in result.document["notes"]


def test_an_sglang_server_gives_ids_and_rounds(jetspec, prompts):
    with stream_server(Script(kind="sglang")) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--format", "json")
    assert result.code == 0
    assert result.document["cells"][0]["accept_length"] > 1
    assert result.document["cells"][0]["round_s"]["median"] > 0


def test_concurrency_keeps_so_many_in_flight(jetspec, prompts):
    import threading

    lock, now, most = threading.Lock(), [0], [0]

    def change(call, tokens):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return tokens

    with stream_server(Script(change=change)) as (url, _):
        result = jetspec(
            "bench", "--prompts", prompts, "--url", url, "--concurrency", "2", "--repeat", "3", "--compare", "linear",
            "--format", "json",
        )  # fmt: skip
    assert result.code == 0
    assert most[0] == 2
    assert result.document["cells"][0]["against"]["linear"]["speedup"]["num_units"] == 3


def test_R24_the_warm_up_has_as_many_in_flight_as_the_load(jetspec, prompts):
    """A server that sees four at once for the first time compiles then; the first measured ones must not pay."""
    import threading

    together, seen = threading.Barrier(4), []

    def change(call, tokens):
        seen.append(call.prompt_ids)
        together.wait(10)  # alone, it would wait in vain
        return tokens

    with stream_server(Script(change=change)) as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--concurrency", "4", "--repeat", "1")
    assert result.code == 0
    assert len(seen) == 2 * 4 + 4
    assert not set(seen[:8]) & set(seen[8:])
    assert len(set(seen[:4])) == 4, "equal texts would share a prefix"


def test_a_request_rate_spreads_the_arrivals(jetspec, prompts):
    with stream_server() as (url, _):
        words = ("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--request-rate", "40", "--seed", "1")
        result = jetspec(*words, "--out", prompts.parent / "o.json")
    assert result.code == 0
    lines = (prompts.parent / "o.requests.ndjson").read_text().splitlines()[1:]
    starts = sorted(json.loads(line)["started_s"] for line in lines)
    assert starts[-1] - starts[0] > 0.005


def test_case_27_a_second_call_measures_only_what_failed(jetspec, prompts, tmp_path):
    out = tmp_path / "o.json"
    with stream_server(faults={3: ERROR_EVENT}) as (url, state):
        words = ("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--out", out, "--format", "json")
        first, num_first = jetspec(*words), state.num_calls
        second = jetspec(*words)
        assert state.num_calls == num_first + 2 + 1
        third = jetspec(*words)
        assert state.num_calls == num_first + 2 + 1
    assert (first.code, second.code, third.code) == (6, 0, 0)
    assert any("resumed" in note for note in second.document["notes"])
    assert third.document["cells"] == second.document["cells"]


def test_another_measurement_does_not_mix_into_a_file(jetspec, prompts, tmp_path):
    out = tmp_path / "o.json"
    with stream_server() as (url, _):
        assert jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--out", out).code == 0
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "2", "--out", out)
    assert result.code == 2
    assert "another measurement" in result.err


def test_a_dry_run_checks_and_estimates_and_writes_nothing(jetspec, prompts, tmp_path):
    out = tmp_path / "o.json"
    with stream_server() as (url, state):
        words = ("bench", "--prompts", prompts, "--url", url, "--compare", "linear", "--dry-run", "--out", out)
        result = jetspec(*words)
        too_wide = jetspec(*words, "--tree-width", "64")
        assert state.num_calls == 4
    assert result.code == 0
    assert "24 requests, 384 tokens" in result.out
    assert too_wide.code == 2
    assert not list(tmp_path.glob("o*"))


@pytest.mark.parametrize(("kind", "first"), [("csv", "label,num_requests,max_tokens,max_s"), ("md", "| cell |")])
def test_a_dry_run_has_the_format_that_was_asked_for(jetspec, prompts, kind, first):
    with stream_server() as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--dry-run", "--format", kind)
    assert result.code == 0
    assert result.out.startswith(first)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compare", "fast"], "'fast', expected linear or plain"),
        (["--repeat", "0"], "repeat: 0"),
        (["--concurrency", "0"], "concurrency: 0"),
        (["--format", "yaml"], "'yaml'"),
        (["--out", "/nowhere/at/all/o.json"], "no such folder"),
        (["--dtype", "float16"], "float16"),
    ],
)
def test_bad_options_are_2(jetspec, prompts, words, said):
    result = jetspec("bench", "--prompts", prompts, "--url", "http://127.0.0.1:9", *words)
    assert result.code == 2
    assert said in result.err
