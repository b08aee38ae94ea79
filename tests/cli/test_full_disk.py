"""A disk that is full costs no result: the tables are shown all the same, and the error names the file."""

from pathlib import Path

import pytest

from jetspec_cli.gating import self_test
from support.mock_server import mock_server
from support.stream_server import stream_server

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def assert_shown_and_said(result, shown: str, place: Path = FULL) -> None:
    assert result.code == 3
    assert shown in result.out
    assert f"error: {place}: No space left on device\n" in result.err


@pytest.mark.parametrize("flag", ["--out", "--junit", "--summary"])
def test_case_27_the_gates_verdict_is_shown(jetspec, prompts, flag):
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, flag, FULL)
    assert_shown_and_said(result, "gate passed: 4/4 identical")
    assert (f"not kept so far: {FULL}" in result.err) is (flag == "--out")


def test_case_27_a_benchs_table_is_shown(jetspec, prompts, tmp_path):
    # Its rows go to a file beside the document, and there is room for them.
    out = tmp_path / "o.json"
    out.symlink_to(FULL)
    with stream_server() as (url, _):
        result = jetspec("bench", "--prompts", prompts, "--url", url, "--repeat", "1", "--out", out)
    assert_shown_and_said(result, "tok/s", out)


def test_case_27_the_self_tests_table_is_shown(jetspec, monkeypatch):
    document = {
        "mutants": [], "healthy": [], "seconds": 1, "exit_code": 0,
        "summary": {"outcome": "passed", "mutants": {"killed": 3, "SURVIVED": 0, "not applicable": 0}},
    }  # fmt: skip
    monkeypatch.setattr(self_test, "run_self_test", lambda *_: document)
    assert_shown_and_said(jetspec("gate", "--self-test", "--out", FULL), "self-test passed: 3/3 mutants killed")
