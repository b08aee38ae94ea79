"""``jetspec sweep`` by replay, end to end: a real server, a tiny pair, killed and resumed, predicted and measured."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.timeless import without_times
from support.tiny_pairs import favour, make_tiny_pair

GRID = ("--beta", "0.5,2", "--g0", "0.5,1", "--tree-width", "2,4", "--budget", "4,12")
# Whatever is a time, or made from times, or says when and how a run happened.
TIMES = {
    "started_at", "ttft_s", "tpot_s", "e2e_s", "round_s", "tok_s", "tok_s_by_class", "tok_s_by_repeat", "speedup",
    "speedup_by_class", "step_cost_ratio", "verdict", "statement", "best", "notes", "command", "step_cost",
    "tok_s_error", "tok_s_error_mean", "tok_s_error_max", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> tuple[list[str], dict[str, str]]:
    """The command line of a sweep over a tiny pair, and its environment."""
    folder = tmp_path_factory.mktemp("replay")
    pair = make_tiny_pair(folder)
    favour(folder / "target", range(40, 46))
    rows = [
        {"id": "text", "prompt": "abc abc abc", "class": "prose", "max_new_tokens": 30},
        {"id": "chat", "messages": [{"role": "user", "content": "hi"}], "class": "chat", "max_new_tokens": 20},
        {"id": "ids", "input_ids": [5, 6, 7, 5, 6, 7], "class": "prose", "max_new_tokens": 25},
        {"id": "one", "input_ids": [9, 6, 7], "class": "code", "max_new_tokens": 1},
    ]
    prompts = folder / "p.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--target", pair["target"], "--head", pair["head"], "--device", "cpu", "--threads", "1"]
    words = [sys.executable, "-m", "jetspec_cli", "sweep", "--prompts", str(prompts), *flags]
    return words, {**os.environ, "JETSPEC_CACHE": pair["cache_dir"], "OMP_NUM_THREADS": "1"}


def sweep(setting: tuple[list[str], dict[str, str]], *words: str) -> subprocess.CompletedProcess[str]:
    command, environment = setting
    return subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=300, check=False)


def load(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())


@pytest.fixture(scope="module")
def whole(setting, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = sweep(setting, *GRID, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert "cells measured: accept lengths equal to the replayed ones" in done.stdout
    return folder


def test_R03_a_large_grid_is_replayed_and_its_front_is_measured_and_gated(whole):
    document = load(whole)
    cells = {cell["label"]: cell for cell in document["cells"]}
    trees = [cell for cell in cells.values() if cell["role"] == "tree"]
    assert len(trees) == 16
    live = [cell for cell in trees if cell["gate"]["outcome"] != "predicted"]
    assert sorted(cell["label"] for cell in live) == sorted(document["replay"]["live_cells"])
    assert 2 <= len(live) < len(trees) / 2
    for cell in live:
        assert cell["gate"]["outcome"] == "passed"
        assert cell["gate"]["verdicts"] == {"identical": 4}
        assert cell["predicted"]["is_accept_exact"]
        assert cell["predicted"]["accept_length"] == cell["accept_length"]
    assert document["replay"]["is_accept_exact"] is True
    assert document["replay"]["num_recorded_prompts"] == 4
    # No cell that was left out is better than a measured one with no more rows.
    best = max(cell["accept_length"] for cell in live)
    assert best == max(cell["accept_length"] for cell in trees)


def test_predicted_cells_are_marked_and_have_an_accept_length_by_class_and_a_speed(whole):
    cells = [cell for cell in load(whole)["cells"] if cell["gate"]["outcome"] == "predicted"]
    for cell in cells:
        assert cell["num_requests"] == 0
        assert set(cell["accept_length_by_class"]) == {"prose", "chat", "code"}
        assert cell["tok_s"]["value"] > 0
        linear = cell["against"]["linear"]
        assert linear["verdict"] in ("predicted to pay", "predicted not to pay")
        assert linear["speedup"]["low"] is None
        assert linear["step_cost_ratio"] > 0
    assert set(load(whole)["summary"]["best"]) == {"overall", "prose", "chat", "code"}
    overall = load(whole)["summary"]["best"]["overall"]
    assert not overall["is_predicted"]
    assert overall["label"] in load(whole)["replay"]["live_cells"]


@pytest.mark.parametrize("kind", ["table", "md", "csv", "json", "html"])
def test_R04_predicted_cells_are_marked_in_every_rendering(jetspec, whole, kind):
    result = jetspec("matrix", whole / "sweep.json", "--format", kind)
    assert result.code == 0
    assert "predicted" in result.out
    if kind in ("table", "md", "html"):
        assert "~ marks what was predicted" in result.out
    again = jetspec("matrix", whole / "sweep.json", "--baseline", whole / "sweep.json")
    assert again.code == 0, "predicted cells are not held against each other"


def test_no_replay_measures_every_cell_and_replay_is_asked_for_by_its_flag(setting, whole, tmp_path):
    small = ("--tree-width", "4", "--budget", "4,12", "--max-new-tokens", "12", "--format", "json")
    plain = json.loads(sweep(setting, *small, "--out", str(tmp_path / "a")).stdout)
    assert "replay" not in plain
    asked = json.loads(sweep(setting, *small, "--replay", "--out", str(tmp_path / "b")).stdout)
    assert asked["replay"]["live_cells"]
    replayed = {cell["label"]: cell["accept_histogram"] for cell in asked["cells"] if cell["role"] == "tree"}
    assert {cell["label"]: cell["accept_histogram"] for cell in plain["cells"] if cell["role"] == "tree"} == replayed


def test_case_29_a_prompt_that_cannot_be_answered_is_counted_and_the_rest_is_replayed(setting, tmp_path):
    prompts = tmp_path / "p.jsonl"
    rows = [{"id": "good", "input_ids": [5, 6, 7]}, {"id": "long", "input_ids": [5] * 200}]
    prompts.write_text("".join(json.dumps({**row, "max_new_tokens": 12}) + "\n" for row in rows))
    words = ("--prompts", str(prompts), "--tree-width", "2,4", "--budget", "4", "--replay", "--format", "json")
    done = sweep(setting, *words, "--out", str(tmp_path / "r"))
    assert done.returncode == 6
    document = json.loads(done.stdout)
    assert document["replay"]["num_recorded_prompts"] == 1
    assert any(note.startswith("long is not in the predictions: ") for note in document["notes"])
    assert {failure["prompt_id"] for failure in document["failures"]} == {"long"}


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "no rows came"
        time.sleep(0.01)


def test_case_27_a_replayed_sweep_killed_twice_equals_an_uninterrupted_one(setting, whole, tmp_path):
    command, environment = setting
    for name, count in (("sweep.recording.ndjson", 3), ("sweep.requests.ndjson", 6)):
        killed = subprocess.Popen(
            [*command, *GRID, "--out", str(tmp_path)], env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for_lines(tmp_path / name, count)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(20)
    recorded = (tmp_path / "sweep.recording.ndjson").read_bytes()
    done = sweep(setting, *GRID, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert without_times(load(tmp_path), TIMES) == without_times(load(whole), TIMES)
    assert (tmp_path / "sweep.recording.ndjson").read_bytes() == recorded, "what was recorded is not recorded again"


def test_a_server_that_cannot_record_is_2_when_replay_is_asked_for(jetspec, prompts, tmp_path):
    from support.stream_server import stream_server

    with stream_server() as (url, state):
        words = ("sweep", "--prompts", prompts, "--url", url, "--tree-width", "4", "--budget", "16")
        result = jetspec(*words, "--replay", "--out", tmp_path / "r")
        assert state.num_calls == 0
    assert result.code == 2
    assert "does not record" in result.err


def test_a_dry_run_names_the_recording_and_a_cell_of_each_budget(setting, tmp_path):
    done = sweep(setting, *GRID, "--dry-run", "--out", str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    starts = [line.split("  ")[0] for line in done.stdout.splitlines()[1:5]]
    assert starts == ["recording", "plain", "W2 B4 top2gap beta 0.5 g0 0.5", "W2 B12 top2gap beta 0.5 g0 0.5"]
    assert not (tmp_path / "none").exists()
