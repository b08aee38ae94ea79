"""``jetspec sweep`` against scripted servers: its grid, its gate in every cell, and what survives kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.mock_server import Handler, Script
from support.stream_server import stream_server
from support.timeless import without_times

# Whatever is a time, or made from times, or says when and how a run happened.
TIMES = {
    "started_at", "ttft_s", "tpot_s", "e2e_s", "round_s", "tok_s", "tok_s_by_class", "tok_s_by_repeat", "speedup",
    "speedup_by_class", "step_cost_ratio", "verdict", "statement", "best", "notes", "command",
}  # fmt: skip


def load(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())


def test_R03_every_cell_is_gated_and_measured_and_the_best_is_named(jetspec, prompts, tmp_path):
    grid = ("--beta", "0.5,1", "--g0", "1", "--tree-width", "4,8", "--budget", "16")
    with stream_server() as (url, state):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, *grid, "--out", tmp_path, "--format", "json")
    assert result.code == 0
    cells = {cell["label"]: cell for cell in result.document["cells"]}
    trees = [f"W{width} B16 top2gap beta {beta} g0 1" for beta in (0.5, 1) for width in (4, 8)]
    assert list(cells) == ["plain", "linear", *trees]
    for label in trees:
        assert cells[label]["gate"]["outcome"] == "passed"
        assert cells[label]["gate"]["verdicts"] == {"identical": 4}
        assert set(cells[label]["against"]) == {"linear", "plain"}
        assert cells[label]["against"]["plain"]["is_derived"]
    summary = result.document["summary"]
    assert set(summary["best"]) == {"overall", "chat", "prose"}
    assert summary["best"]["overall"]["label"] in trees
    assert "of 4 tree cells pay" in summary["statement"]
    assert load(tmp_path) == result.document
    # R17: one server, switched; at the end back to the tree that ran before.
    assert len({json.dumps(body) for path, body in state.log if path == "/jetspec/tree" and body}) == 7


def always_drafts(handler: Any, body: Any) -> Any:
    """A server such as ours on SGLang: plain decoding is refused, and rounds are counted and not timed."""
    if body is not None and (body["width"], body["budget"]) == (1, 1):
        return {"error": {"message": "decodes without drafts only when started so"}}, 400
    if body is not None:
        handler.server.state.tree = body
    return handler.server.state.tree


def test_R17_a_server_that_always_drafts_is_swept_without_plain_decoding(jetspec, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr("support.stream_server.StreamHandler.on_jetspec_tree", always_drafts)
    monkeypatch.setattr("support.stream_server.StreamHandler.native", Handler.native)
    words = ("--prompts", prompts, "--tree-width", "4,8", "--budget", "16", "--format", "json")
    script = Script(info={"can_decode_plainly": False})
    with stream_server(script) as (url, _):
        result = jetspec("sweep", *words, "--url", url, "--out", tmp_path)
        dry = jetspec("sweep", *words, "--url", url, "--dry-run")
        asked_by_name = jetspec("bench", "--prompts", prompts, "--url", url, "--compare", "plain")
    assert (result.code, dry.code, asked_by_name.code) == (0, 0, 2)
    assert "decodes without drafts" in asked_by_name.err
    assert [cell["label"] for cell in result.document["cells"]] == ["W4 B16", "linear", "W8 B16"]
    assert [cell["label"] for cell in dry.document["cells"]] == ["W4 B16", "W8 B16"]
    assert any("plain decoding" in note for note in result.document["notes"])
    # Seen from outside: (end - first token) / rounds, without the prefill's.
    rows = [json.loads(line) for line in (tmp_path / "sweep.requests.ndjson").read_text().splitlines()[1:]]
    for row in rows:
        assert row["round_s"]["num"] == row["num_rounds"] - 1
        assert row["round_s"]["median"] == pytest.approx((row["e2e_s"] - row["ttft_s"]) / row["round_s"]["num"])
    assert all(cell["against"]["linear"]["step_cost_ratio"] > 0 for cell in result.document["cells"] if cell["tree"]
               and cell["role"] == "tree")  # fmt: skip


def test_case_31_two_configurations_are_two_rows(jetspec, prompts, tmp_path):
    with stream_server() as (url, _):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, "--tree-width", "4", "--budget", "16,32",
                         "--out", tmp_path)  # fmt: skip
    assert result.code == 0
    starts = [line.split("  ")[0] for line in result.out.splitlines()]
    assert {"W4 B16", "W4 B32"} <= set(starts)
    assert "best overall: W4 B" in result.out


def test_rules_beside_each_other_multiply_beta_for_top2gap_only(jetspec, prompts, tmp_path):
    with stream_server() as (url, _):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, "--rule", "best_first,top2gap", "--beta", "1,2",
                         "--tree-width", "4", "--budget", "16", "--out", tmp_path, "--format", "json")  # fmt: skip
    labels = [cell["label"] for cell in result.document["cells"] if cell["role"] == "tree"]
    assert labels == ["W4 B16", "W4 B16 top2gap beta 1 g0 1", "W4 B16 top2gap beta 2 g0 1"]


def test_a_cell_that_fails_its_gate_gets_no_speed_and_the_others_do(jetspec, prompts, tmp_path):
    def change(call, tokens):
        return [tokens[0] + 1, *tokens[1:]] if call.tree["width"] == 8 else tokens

    with stream_server(Script(change=change)) as (url, _):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, "--tree-width", "4,8", "--budget", "16",
                         "--out", tmp_path)  # fmt: skip
    assert result.code == 1
    good, bad = load(tmp_path)["cells"][2:]
    assert good["tok_s"]["value"] > 0
    assert bad["tok_s"] is None
    assert bad["against"] == {}
    assert bad["accept_length"] > 1
    assert load(tmp_path)["summary"]["best"]["overall"]["label"] == "W4 B16"
    [line] = [line for line in result.out.splitlines() if line.startswith("W8 B16  ")]
    assert "/" not in line.split("failed")[1], "no percentiles of a cell whose gate failed"


def test_several_prompts_files_are_one_set_and_a_shared_id_is_refused(jetspec, prompts, tmp_path):
    other = tmp_path / "more.jsonl"
    other.write_text('{"id": "x", "prompt": "four", "max_new_tokens": 16, "class": "math"}\n')
    with stream_server() as (url, _):
        words = ("sweep", "--url", url, "--tree-width", "4", "--budget", "16", "--out", tmp_path / "r")
        result = jetspec(*words, "--prompts", f"{prompts},{other}", "--format", "json")
        refused = jetspec(*words, "--prompts", f"{prompts},{prompts}")
    assert result.document["configuration"]["num_prompts"] == 5
    assert "math" in result.document["summary"]["best"]
    assert refused.code == 4


def test_a_dry_run_names_every_cell(jetspec, prompts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stream_server() as (url, _):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, "--tree-width", "2,4", "--budget", "16",
                         "--dry-run")  # fmt: skip
    assert result.code == 0
    assert [line.split("  ")[0] for line in result.out.splitlines()[1:4]] == ["plain", "W2 B16", "W4 B16"]
    assert "24 requests" in result.out
    assert not (tmp_path / "results").exists()


def test_R03_the_command_as_it_is_promised_measures_the_ten_prompts_of_a_clone(jetspec, tmp_path, monkeypatch):
    with stream_server() as (url, _):
        words = ("--url", url, "--dry-run", "--format", "json")
        monkeypatch.chdir(Path(__file__).parents[2])
        result = jetspec("sweep", "--beta", "1.0", "--g0", "1.0", *words)
        bench = jetspec("bench", *words)
        monkeypatch.chdir(tmp_path)
        elsewhere = jetspec("sweep", "--beta", "1.0", "--g0", "1.0", *words[:3])
    assert (result.code, bench.code) == (0, 0)
    assert [cell["label"] for cell in result.document["cells"]][-1] == "W8 B16 top2gap beta 1 g0 1"
    assert elsewhere.code == 4
    assert elsewhere.err.startswith("error: prompts file: prompts/10.jsonl: No such file")


def test_without_out_the_same_command_finds_its_folder_again(jetspec, prompts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stream_server() as (url, state):
        words = ("sweep", "--prompts", prompts, "--url", url, "--budget", "16")
        assert jetspec(*words, "--tree-width", "4").code == 0
        num_calls = state.num_calls
        assert jetspec(*words, "--tree-width", "4").code == 0
        assert state.num_calls == num_calls
        assert jetspec(*words, "--tree-width", "8").code == 0
    assert len(list((tmp_path / "results").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--beta", "1", "--rule", "best_first"], "belong to the rule top2gap"),
        (["--rule", "best-first"], "did you mean best_first?"),
        (["--tree-width", "0"], "tree.width: 0"),
        (["--tree-width", "64"], "was started for at most 8"),
    ],
)
def test_bad_grids_are_2(jetspec, prompts, tmp_path, words, said):
    with stream_server() as (url, state):
        result = jetspec("sweep", "--prompts", prompts, "--url", url, *words, "--out", tmp_path / "r")
        assert state.num_calls == 0
    assert result.code == 2
    assert said in result.err


def start_sweep(*words: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "jetspec_cli", "sweep", *words], stdout=-3, stderr=-3)


def wait_for_rows(path: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "no rows came"
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "SIGTERM"])
def test_case_27_a_killed_sweep_goes_on_and_equals_an_uninterrupted_one(jetspec, prompts, tmp_path, stop):
    def change(call, tokens):
        time.sleep(0.02)
        return tokens

    with stream_server(Script(change=change)) as (url, state):
        grid = ("--prompts", str(prompts), "--url", url, "--tree-width", "2,4", "--budget", "16")
        killed = start_sweep(*grid, "--out", str(tmp_path / "killed"))
        wait_for_rows(tmp_path / "killed" / "sweep.requests.ndjson", 12)
        os.kill(killed.pid, stop)
        assert killed.wait(20) == (-9 if stop == signal.SIGKILL else 130)
        rows = (tmp_path / "killed" / "sweep.requests.ndjson").read_bytes().count(b"\n") - 1
        assert rows < 24
        num_before = state.num_calls
        jetspec("sweep", *grid, "--out", tmp_path / "killed")
        # Two arms a pairing are warmed up twice; what was done is not done again.
        assert state.num_calls - num_before <= 24 - rows + 1 + 3 * 4
        jetspec("sweep", *grid, "--out", tmp_path / "whole")
    assert without_times(load(tmp_path / "killed"), TIMES) == without_times(load(tmp_path / "whole"), TIMES)
    assert load(tmp_path / "killed")["outcome"] == "done"
