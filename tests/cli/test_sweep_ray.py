"""``jetspec sweep --executor ray``: the same document as on one server, resumed, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jetspec_cli.bench import server
from jetspec_cli.bench.server import Link
from support.mock_server import Script
from support.stand_in_ray import RayError, stand_in_ray
from support.stream_server import stream_server
from support.timeless import without_times

# Whatever is a time, or made from times, or says when, where and how a run happened.
TIMES = {
    "started_at", "ttft_s", "tpot_s", "e2e_s", "round_s", "tok_s", "tok_s_by_class", "tok_s_by_repeat", "speedup",
    "speedup_by_class", "step_cost_ratio", "verdict", "statement", "best", "notes", "command", "servers",
    "configuration",
}  # fmt: skip
GRID = ("--tree-width", "2,4,8", "--budget", "16,32")


@pytest.fixture
def cluster(monkeypatch):
    """A stand-in for Ray whose workers' servers are the mock at a URL; returns the module."""

    def make(url: str, **free: float):
        ray = stand_in_ray(**free)
        monkeypatch.setitem(sys.modules, "ray", ray)

        def reach(spec, link, on_progress):
            return server.open_bench(replace(spec, server={}), Link(url=url), on_progress)

        monkeypatch.setattr("jetspec_cli.bench.spread.open_bench", reach)
        return ray

    return make


def test_R03_cells_over_a_cluster_give_the_document_of_one_server(jetspec, prompts, tmp_path, cluster):
    with stream_server() as (url, _):
        ray = cluster(url, GPU=3, CPU=16)
        words = ("sweep", "--prompts", prompts, *GRID, "--format", "json")
        spread = jetspec(*words, "--executor", "ray", "--device", "cuda", "--out", tmp_path / "ray")
        alone = jetspec(*words, "--url", url, "--out", tmp_path / "alone")
    assert (spread.code, alone.code) == (0, 0)
    assert ray.actors == [{"num_gpus": 1, "num_cpus": 1}] * 3
    assert without_times(spread.document, TIMES) == without_times(alone.document, TIMES)
    assert any("spread by Ray over 3 servers" in note for note in spread.document["notes"])
    assert json.loads((tmp_path / "ray" / "sweep.json").read_text()) == spread.document


def test_cores_are_shared_out_by_threads_and_never_more_workers_than_cells(jetspec, prompts, tmp_path, cluster):
    with stream_server() as (url, _):
        words = ("sweep", "--prompts", prompts, "--executor", "ray", "--device", "cpu", "--threads", "2")
        ray = cluster(url, CPU=7)
        assert jetspec(*words, *GRID, "--out", tmp_path / "a").code == 0
        assert ray.actors == [{"num_cpus": 2}] * 3
        ray = cluster(url, CPU=64)
        assert jetspec(*words, "--tree-width", "4", "--budget", "16", "--out", tmp_path / "b").code == 0
        assert len(ray.actors) == 2, "plain decoding, and the tree"
        cluster(url, CPU=1)
        full = jetspec(*words, *GRID, "--out", tmp_path / "c")
    assert full.code == 3
    assert "a worker needs 2 cpus; the cluster has no room" in full.err


def test_case_27_what_is_done_is_not_measured_again(jetspec, prompts, tmp_path, cluster):
    words = ("sweep", "--prompts", prompts, *GRID, "--executor", "ray", "--device", "cpu", "--format", "json")
    with stream_server() as (url, state):
        cluster(url, CPU=2)
        whole = jetspec(*words, "--out", tmp_path / "a")
        rows = tmp_path / "a" / "sweep.requests.ndjson"
        kept = rows.read_bytes().splitlines(keepends=True)[:20]
        rows.write_bytes(b"".join(kept) + b'{"torn')
        num_before = state.num_calls
        again = jetspec(*words, "--out", tmp_path / "a")
        num_again = state.num_calls - num_before
        assert jetspec(*words, "--out", tmp_path / "a").code == 0
        assert state.num_calls == num_before + num_again, "nothing was left to do"
    assert again.code == 0
    assert num_again < num_before
    assert without_times(again.document, TIMES) == without_times(whole.document, TIMES)
    assert any(note.startswith("resumed") for note in again.document["notes"])


def test_case_28_a_server_that_dies_and_a_worker_that_is_lost_are_6_and_keep_what_is_done(
    jetspec, prompts, tmp_path, cluster, monkeypatch
):
    words = ("sweep", "--prompts", prompts, *GRID, "--executor", "ray", "--device", "cpu", "--format", "json")
    with stream_server(Script(dies_at=30)) as (url, _):
        cluster(url, CPU=2)
        dead = jetspec(*words, "--out", tmp_path / "a")
    assert dead.code == 6
    assert 0 < dead.document["summary"]["num_requests"] < 56
    with stream_server() as (url, _):
        ray = cluster(url, CPU=2)

        def lose(self, block):
            raise RayError("The actor died.\nmore")

        monkeypatch.setattr("jetspec_cli.bench.spread.Worker.run", lose)
        lost = jetspec(*words, "--out", tmp_path / "b")
        assert len(ray.actors) == 2
    assert lost.code == 6
    assert "ray: a worker is gone: The actor died." in lost.err


@pytest.fixture
def no_ray(monkeypatch):
    """As if Ray were not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--executor", "dask"], (2, "executor")),
        (["--executor", "ray", "--url", "http://127.0.0.1:9"], (2, "cannot be used with --url")),
        (["--executor", "ray", "--replay"], (2, "cannot be used with --replay")),
        (["--executor", "ray"], (3, "pip install 'jetspec[ray]'")),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_runs(jetspec, prompts, tmp_path, words, expected):
    result = jetspec("sweep", "--prompts", prompts, *GRID, *words, "--out", tmp_path / "r")
    assert result.code == expected[0]
    assert expected[1] in result.err
    assert not (tmp_path / "r").exists()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The command line of a sweep over a tiny pair, and its environment."""
    pytest.importorskip("torch")
    from support.tiny_pairs import favour, make_tiny_pair

    folder = tmp_path_factory.mktemp("ray")
    pair = make_tiny_pair(folder)
    favour(folder / "target", range(40, 46))
    rows = [{"id": f"p{n}", "class": "code", "input_ids": [5 + n, 6, 7], "max_new_tokens": 40} for n in range(6)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [sys.executable, "-m", "jetspec_cli", "sweep", "--prompts", str(folder / "p.jsonl")]
    words += ["--target", pair["target"], "--head", pair["head"], "--device", "cpu", "--threads", "1"]
    words += ["--tree-width", "2,4", "--budget", "4,8", "--no-replay"]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
    return words, {**os.environ, "JETSPEC_CACHE": pair["cache_dir"], "OMP_NUM_THREADS": "1", **quiet}


@pytest.mark.slow
def test_case_27_a_local_ray_killed_and_resumed_equals_one_server(tiny, tmp_path):
    pytest.importorskip("ray")
    words, environment = tiny
    spread = [*words, "--executor", "ray", "--out", str(tmp_path / "ray")]
    rows = tmp_path / "ray" / "sweep.requests.ndjson"
    for how, num_rows in ((signal.SIGTERM, 6), (signal.SIGKILL, 20)):
        stopped = subprocess.Popen(spread, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not rows.exists() or rows.read_bytes().count(b"\n") < num_rows:
            assert stopped.poll() is None
            assert time.monotonic() < deadline, "no rows came"
            time.sleep(0.02)
        os.kill(stopped.pid, how)
        assert stopped.wait(60) == (130 if how == signal.SIGTERM else -9)
    for command in (spread, [*words, "--out", str(tmp_path / "alone")]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
    ray, alone = (json.loads(Path(tmp_path / name / "sweep.json").read_text()) for name in ("ray", "alone"))
    assert without_times(ray, TIMES) == without_times(alone, TIMES)
    assert any("spread by Ray over 2 servers" in note or "over 1 servers" in note for note in ray["notes"])
