"""``jetspec gate`` end to end: real child processes, the embedded engine, a tiny random target and head on disk."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.tiny_pairs import make_tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> dict[str, str]:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"))


def run(*words: str, cache: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JETSPEC_CACHE": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jetspec_cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def short_prompts(folder: Path) -> Path:
    rows = [
        {"id": "text", "prompt": "abc abc abc", "class": "prose"},
        {"id": "chat", "messages": [{"role": "user", "content": "hi"}], "class": "chat"},
        {"id": "ids", "input_ids": [5, 6, 7, 5, 6, 7], "class": "prose"},
    ]
    path = folder / "p.jsonl"
    path.write_text("".join(json.dumps({**row, "max_new_tokens": 24}) + "\n" for row in rows))
    return path


def test_R02_the_embedded_engine_is_exact_in_both_dtypes_against_both_oracles(pair, tmp_path):
    flags = ["--target", pair["target"], "--head", pair["head"], "--device", "cpu", "--threads", "1"]
    flags += ["--tree-width", "1,4", "--budget", "8,16", "--oracle", "linear,greedy", "--dtype", "float32,bfloat16"]
    done = run("gate", "--prompts", str(short_prompts(tmp_path)), *flags, "--format", "json", cache=pair["cache_dir"])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    summary = document["summary"]
    assert summary["comparisons"]["identical"] == 2 * 4 * 2 * 3
    assert summary["checks"]["accounting"]["num_checked"] == len(document["runs"]) == 2 * (4 + 2) * 3
    assert summary["checks"]["teacher_forced"]["num_checked"] >= 2 * 3
    assert document["notes"] == []
    assert [server["info"]["dtype"] for server in document["servers"]] == ["float32", "bfloat16"]
    assert str(Path(pair["target"]).parent) not in json.dumps(document["servers"])


def test_R06_doctor_measures_the_accept_length_beside_the_expected(pair):
    flags = ["--target", pair["target"], "--head", pair["head"], "--device", "cpu"]
    done = run("doctor", "--measure", *flags, "--format", "json", cache=pair["cache_dir"])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["accept_length"]
    for name in ("linear", "tree"):
        # A random head gets hardly anything, and promises hardly more.
        assert 1.0 <= found[name]["measured"] < 2.0
        assert 1.0 < found[name]["expected"] < 2.0
        assert set(found[name]["classes"]) == {"code", "list", "prose"}
    assert found["tree"]["expected"] > found["linear"]["expected"]


def test_a_taken_port_is_3(pair):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ["--target", pair["target"], "--head", pair["head"], "--port", port]
        done = run("serve", *flags, cache=pair["cache_dir"])
    assert done.returncode == 3
    assert port in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_no_such_model_is_4(pair, tmp_path):
    prompts = short_prompts(tmp_path)
    for words in (["serve"], ["gate", "--prompts", str(prompts)]):
        done = run(
            *words, "--target", "smolm2-135m", "--no-pull" if words == ["serve"] else "--threads=1", cache="/none"
        )
        assert done.returncode == 4
        assert "did you mean smollm2-135m?" in done.stderr


@pytest.mark.parametrize("target", ["smollm2-135m", "random:qwen3-moe", "somebody/some-model"])
def test_a_model_that_is_not_here_is_4_when_it_may_not_be_pulled(tmp_path, target):
    done = run("serve", "--no-pull", "--drafter", "right", "--target", target, cache=str(tmp_path))
    assert done.returncode == 4
    assert f"jetspec models pull {target}" in done.stderr
    assert list(tmp_path.iterdir()) == []
