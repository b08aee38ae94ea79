"""The SGLang measuring scripts from end to end against a fake server: the arithmetic, the table, a failing server."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAKE = f"{sys.executable} {Path(__file__).with_name('fake_server.py')}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(script, tmp_path, *words):
    command = [sys.executable, "-m", f"tests.measure.{script}", f"--out={tmp_path}/out.json", f"--work={tmp_path}/w"]
    command += [f"--port={free_port()}", f"--launch={FAKE}", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads((tmp_path / "out.json").read_text()), ran.stdout


def test_steps_are_measured_compared_and_profiled(tmp_path):
    words = ("--servers=linear-fa3,tree-fa3,linear-flashinfer", "--turns=2", "--new=101", "--profile", "--limit=100")
    document, said = run("sglang_steps", tmp_path, *words)
    first, second = document["waves"]
    arms = {arm["arm"]: arm for arm in first["arms"]}
    assert list(arms) == ["linear-fa3", "tree-fa3 W1", *(f"tree-fa3 W8 B{n}" for n in (16, 32, 64, 128))]
    for arm in arms.values():
        assert arm["error"] is None
        assert (arm["tokens"], arm["rounds"], arm["accept_length"], arm["turns"]) == (101, 20, 5.0, 2)
        assert arm["floor_ms"] == pytest.approx(4.29, abs=0.01)
    assert arms["linear-fa3"]["ratio_to_fastest_linear"] == 1.0
    assert (arms["tree-fa3 W8 B64"]["graph_rounds"], arms["tree-fa3 W8 B64"]["counted_rounds"]) == (40, 40)
    assert document["profiles"]["tree-fa3 W8 B64"]["us"]["verify: attention"] == 350.0
    # The anchors are measured again beside what the second wave brings.
    assert {"linear-fa3", "linear-flashinfer"} <= {arm["arm"] for arm in second["arms"]}
    assert "tree-fa3 W8 B128" in said


def test_a_server_that_does_not_start_is_reported_and_the_others_go_on(tmp_path):
    sys.path.insert(0, str(ROOT))
    try:
        from tests.measure.sglang_server import Server, start_all
    finally:
        sys.path.remove(str(ROOT))
    servers = [
        Server(name=backend, words=[f"--attention-backend={backend}"], port=free_port(), folder=tmp_path,
               launch=FAKE.split())
        for backend in ("broken", "fa3")
    ]  # fmt: skip
    try:
        assert [server.name for server in start_all(servers, 30, lambda text: None)] == ["fa3"]
        assert servers[0].error == "ended with 3: ValueError: no such backend"
        timed = servers[1].generate([1, 2, 3], 11, ignores_eos=True)
        assert (timed.rounds, len(timed.ids), timed.accept_length) == (10, 11, 1.0)
    finally:
        for server in servers:
            server.stop()


def test_steps_of_which_no_server_came_up_exit_6_and_say_so(tmp_path):
    command = [sys.executable, "-m", "tests.measure.sglang_steps", f"--out={tmp_path}/out.json", f"--work={tmp_path}/w",
               f"--port={free_port()}", "--launch=false", "--servers=linear-fa3,tree-fa3"]  # fmt: skip
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 6
    assert ran.stderr.startswith("error: nothing was measured: no server came up, or all that did failed\n\nhint: see")
    assert "linear-fa3: ended with 1" in ran.stdout
    assert "turn 1/5" not in ran.stdout
    (wave,) = json.loads((tmp_path / "out.json").read_text())["waves"]
    assert [bool(server["error"]) for server in wave["servers"]] == [True, True]


def test_an_interrupted_run_reports_the_turns_that_were_whole(tmp_path):
    out, port = tmp_path / "out.json", free_port()
    command = [sys.executable, "-m", "tests.measure.sglang_steps", f"--out={out}", f"--work={tmp_path}/w",
               f"--port={port}", f"--launch={FAKE}", "--servers=linear-fa3", "--turns=100000", "--new=101"]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not out.exists() or not json.loads(out.read_text())["waves"][0]["arms"][0]["turns"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    (arm,) = json.loads(out.read_text())["waves"][0]["arms"]
    assert arm["turns"] >= 1
    assert "interrupted" in said
    assert f"{arm['ms_a_round']:.3f}" in said
