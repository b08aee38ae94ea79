"""``jetspec gate`` without ``--url``: it starts a server, waits, and always stops it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jetspec_cli.serving import launcher
from jetspec_engine.errors import UnavailableError

MOCK_SERVE = Path(__file__).parents[1] / "support" / "mock_serve.py"


@pytest.fixture
def scenario(monkeypatch, tmp_path):
    """Replace ``jetspec serve`` by a stand-in that behaves as told; return the file that holds its process id."""
    monkeypatch.setattr(launcher, "SERVE_COMMAND", (sys.executable, str(MOCK_SERVE)))
    monkeypatch.setenv("MOCK_SERVE_PID", str(tmp_path / "pid"))

    def choose(name: str) -> Path:
        monkeypatch.setenv("MOCK_SERVE", name)
        return tmp_path / "pid"

    return choose


def is_running(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_is_started_for_each_dtype_and_stopped(jetspec, prompts, scenario):
    pid_file = scenario("ok")
    result = jetspec("gate", "--prompts", prompts, "--dtype", "float32,bfloat16", "--format", "json")
    assert result.code == 0
    assert [server["info"]["dtype"] for server in result.document["servers"]] == ["float32", "bfloat16"]
    assert {row["dtype"] for row in result.document["comparisons"]} == {"float32", "bfloat16"}
    assert "loading a mock" in result.err
    assert not is_running(pid_file)


def test_the_child_is_started_with_what_was_asked(jetspec, prompts, scenario):
    scenario("ok")
    flags = ["--target", "t", "--head", "h", "--tree-width", "2,16", "--budget", "256", "--threads", "2"]
    result = jetspec("gate", "--prompts", prompts, *flags, "--format", "json")
    # The stand-in reserves less than was asked for, and the gate sees it before the run.
    assert result.code == 2
    assert "was started for at most" in result.document["error"]["what"]


@pytest.mark.parametrize("command", ["gate", "bench", "sweep"])
def test_options_after_two_dashes_reach_the_server(jetspec, prompts, monkeypatch, command):
    seen = []

    class Never(launcher.ServerProcess):
        def __enter__(self):
            seen.append(self._command)
            raise UnavailableError("never")

    for module in ("jetspec_cli.gating.sides", "jetspec_cli.bench.server"):
        monkeypatch.setattr(f"{module}.ServerProcess", Never)
    flags = ["--tree-width", "4", "--budget", "16", "--engine", "sglang"]
    assert jetspec(command, "--prompts", prompts, *flags, "--", "--attention-backend", "triton").code == 3
    assert seen[0][-3:] == ["--", "--attention-backend", "triton"]


def test_a_wrong_tree_is_found_behind_a_started_server(jetspec, prompts, scenario):
    pid_file = scenario("wrong")
    assert jetspec("gate", "--prompts", prompts).code == 1
    assert not is_running(pid_file)


def test_a_child_that_knows_why_it_failed_is_quoted_with_its_exit_code(jetspec, prompts, scenario):
    scenario("told death")
    result = jetspec("gate", "--prompts", prompts)
    assert result.code == 4
    assert result.err.endswith("error: model 'x': no such model\n\nhint: jetspec models list\n")


def test_case_28_a_child_that_dies_silently_is_one_line_and_6(jetspec, prompts, scenario):
    scenario("silent death")
    result = jetspec("gate", "--prompts", prompts)
    assert result.code == 6
    assert "error: the server exited with code 139: Segmentation fault, of sorts" in result.err


def test_case_28_a_child_that_dies_mid_run_keeps_its_rows(jetspec, prompts, scenario, tmp_path):
    pid_file = scenario("dies at 4")
    result = jetspec("gate", "--prompts", prompts, "--out", tmp_path / "o.json")
    assert result.code == 6
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["summary"]["comparisons"]["identical"] == 1
    assert document["comparisons"][-1]["detail"].endswith("the server exited with code 9")
    assert not is_running(pid_file)


def test_a_second_dtype_that_cannot_run_does_not_cost_the_first_ones_rows(jetspec, prompts, scenario):
    scenario("no bfloat16")
    first = jetspec("gate", "--prompts", prompts, "--dtype", "bfloat16,float32")
    assert first.code == 3
    second = jetspec("gate", "--prompts", prompts, "--dtype", "float32,bfloat16", "--format", "json")
    assert second.code == 6
    assert second.document["error"] == "dtype bfloat16: not on this device"
    assert second.document["summary"]["comparisons"]["identical"] == 4


def test_R22_the_key_goes_to_the_child_by_its_environment_and_never_into_results(jetspec, prompts, scenario, tmp_path):
    scenario("ok")
    result = jetspec("gate", "--prompts", prompts, "--api-key", "s3cret", "--format", "json")
    assert result.code == 0
    assert "s3cret" not in result.out
    assert "s3cret" not in str(result.document["servers"][0]["info"])


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_case_27_an_interrupted_run_keeps_its_rows_stops_its_server_and_exits_130(prompts, tmp_path, signal_number):
    out, pid_file = tmp_path / "o.json", tmp_path / "pid"
    process = start_gate(prompts, out, pid_file)
    wait_for(out.exists)
    process.send_signal(signal_number)
    assert process.wait(30) == 130
    document = json.loads(out.read_text())
    assert document["summary"]["outcome"] == "interrupted"
    assert document["exit_code"] == 130
    assert document["comparisons"][0]["verdict"] == "identical"
    assert not is_running(pid_file)


def test_case_27_a_killed_run_leaves_a_readable_document_and_no_server(prompts, tmp_path):
    out, pid_file = tmp_path / "o.json", tmp_path / "pid"
    process = start_gate(prompts, out, pid_file)
    wait_for(out.exists)
    process.kill()
    process.wait(30)
    assert json.loads(out.read_text())["summary"]["outcome"] == "running"
    wait_for(lambda: not is_running(pid_file))


@pytest.mark.parametrize("command", ["gate", "bench", "profile", "doctor --measure"])
def test_case_27_a_command_stopped_while_its_server_loads_stops_it_and_exits_130(prompts, tmp_path, command):
    pid_file = tmp_path / "pid"
    words = [*command.split(), *(["--prompts", str(prompts)] if command in ("gate", "bench") else [])]
    process = start(words, "loads for ever", pid_file, cwd=tmp_path)
    try:
        wait_for(lambda: pid_file.exists() and pid_file.read_text(), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert not is_running(pid_file)


def start_gate(prompts: Path, out: Path, pid_file: Path) -> subprocess.Popen:
    """Run the gate on a slow stand-in, as a process that can be interrupted."""
    return start(["gate", "--prompts", str(prompts), "--out", str(out)], "slow", pid_file)


def start(words: list[str], scenario: str, pid_file: Path, cwd: Path | None = None) -> subprocess.Popen:
    """Run a command on a stand-in that behaves as told, as a process that can be interrupted."""
    script = (
        "import sys; from jetspec_cli.__main__ import start; from jetspec_cli.serving import launcher; "
        f"launcher.SERVE_COMMAND = (sys.executable, {str(MOCK_SERVE)!r}); start()"
    )
    environment = {**os.environ, "MOCK_SERVE": scenario, "MOCK_SERVE_PID": str(pid_file)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", script, *words], env=environment, cwd=cwd, **quiet)


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
