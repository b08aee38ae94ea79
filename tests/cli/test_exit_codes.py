"""Every exit code of the table, the shape of errors, and what goes to stdout and stderr."""

import json
import os
import subprocess
import sys

import pytest

from jetspec_cli import app, exit_codes
from jetspec_engine import errors

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.JetspecError)]
EXPECTED = {
    "ConfigError": 2,
    "UnavailableError": 3,
    "ArtifactError": 4,
    "InconclusiveError": 5,
    "EngineError": 6,
    "RequestError": 6,
    "BusyError": 6,
}


def raising(error: BaseException):
    def body(*_, **__):
        raise error

    return body


@pytest.fixture
def failing(monkeypatch):
    """Make ``jetspec doctor`` fail in a chosen way."""

    def set_error(error: BaseException) -> None:
        monkeypatch.setattr("jetspec_cli.serving.checkup.examine", raising(error))

    return set_error


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.JetspecError], ids=lambda c: c.__name__)
def test_every_error_has_its_exit_code(jetspec, failing, cls):
    failing(cls("thing: 7, expected 8", hint="do this"))
    result = jetspec("doctor")
    assert result.code == EXPECTED[cls.__name__]
    assert result.err == "error: thing: 7, expected 8\n\nhint: do this\n"
    assert result.out == ""


def test_with_format_json_an_error_is_one_object_on_stdout(jetspec, failing):
    failing(errors.ArtifactError("thing: 7", hint="do this"))
    result = jetspec("doctor", "--format", "json")
    assert result.code == 4
    assert json.loads(result.out) == {"error": {"exit_code": 4, "what": "thing: 7", "hint": "do this"}}
    assert result.err == ""


def test_without_a_hint_there_is_one_line(jetspec, failing):
    failing(errors.EngineError("gone"))
    assert jetspec("doctor").err == "error: gone\n"


def test_a_self_test_that_cannot_run_says_nothing_before_it_says_so(jetspec, monkeypatch):
    monkeypatch.setattr("jetspec_engine.registry.self_test", raising(errors.UnavailableError("no engine")))
    assert jetspec("gate", "--self-test").err.startswith("error: no engine\n")


def test_an_unexpected_exception_is_70_with_where_to_report_it(jetspec, failing):
    failing(ZeroDivisionError("division by\nzero"))
    result = jetspec("doctor")
    assert result.code == 70
    assert result.err.startswith("error: ZeroDivisionError at test_exit_codes.py:")
    assert app.ISSUES_URL in result.err
    assert "Traceback" not in result.err


def test_a_traceback_is_there_for_the_asking(jetspec, failing, monkeypatch):
    failing(ZeroDivisionError("x"))
    monkeypatch.setenv("JETSPEC_TRACEBACK", "1")
    assert "Traceback" in jetspec("doctor").err


def test_ctrl_c_is_130(jetspec, failing):
    failing(KeyboardInterrupt())
    assert jetspec("doctor").code == 130


USAGE = {
    "unknown command": (["serv"], "No such command 'serv'. Did you mean 'serve'?", "jetspec --help"),
    "unknown option": (["gate", "--promts", "x"], "No such option: --promts", "did you mean --prompts?"),
    "missing value": (["gate", "--prompts"], "--prompts", "--help"),
    "not a number": (["serve", "--port", "http"], "--port", "jetspec serve --help"),
    "missing argument": (["models", "pull"], "name", "jetspec models pull --help"),
    "port out of range": (["serve", "--port", "70000"], "port: 70000, expected an integer in [0, 65535]", ""),
    "unknown engine": (["serve", "--engine", "embeded"], "engine: 'embeded'", "did you mean embedded?"),
    "unknown rule": (["serve", "--tree-rule", "bestfirst"], "tree.rule: 'bestfirst'", "did you mean best_first?"),
    "beta with another rule": (["serve", "--tree-rule", "best_first", "--beta", "1"], "belong to the rule top2gap", ""),
    "width of zero": (["serve", "--tree-width", "0"], "tree.width: 0", ""),
    "unknown format": (["doctor", "--format", "jsn"], "--format: 'jsn'", "did you mean json?"),
    "no prompts": (["gate"], "no prompts file given", "jetspec gate --prompts prompts/10.jsonl"),
    "missing gate file": (["gate", "--gate", "none.toml"], "gate file: none.toml: No such file", ""),
    "bad list": (["gate", "--tree-width", "4;7"], "--tree-width: '4;7'", ""),
    "bad url": (["gate", "--prompts", "PROMPTS", "--url", "localhost:1"], "url: 'localhost:1'", ""),
    "no folder for a result": (["gate", "--prompts", "PROMPTS", "--out", "no/such/o.json"], "no such folder", "mkdir"),
    "words for no engine": (["serve", "--engine", "embedded", "extra"], "options after --", ""),
}


@pytest.mark.parametrize("name", USAGE)
def test_R10_usage_errors_are_one_line_a_hint_and_2(jetspec, prompts, name):
    words, what, hint = USAGE[name]
    result = jetspec(*[prompts if word == "PROMPTS" else word for word in words])
    assert result.code == 2
    lines = result.err.strip().split("\n")
    assert lines[0].startswith("error: ")
    assert what in lines[0]
    assert hint in result.err
    assert len(lines) in (1, 3)
    assert result.out == ""


def test_usage_errors_are_json_too(jetspec):
    result = jetspec("gate", "--promts", "x", "--format", "json")
    assert (result.code, result.document["error"]["hint"]) == (2, "did you mean --prompts?")


def test_a_missing_prompts_file_is_4(jetspec):
    result = jetspec("gate", "--prompts", "none.jsonl")
    assert result.code == 4
    assert result.err.startswith("error: prompts file: none.jsonl: No such file")


def test_case_30_a_bad_prompts_file_is_4_with_file_and_line(jetspec, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n{"id": "b"}\n')
    result = jetspec("gate", "--prompts", path)
    assert result.code == 4
    assert result.err.startswith(f"error: {path}:2: expected exactly one of")


def test_no_arguments_show_help_and_exit_2(jetspec):
    result = jetspec()
    assert result.code == 2
    assert "Usage: jetspec" in result.err


def test_help_goes_to_stdout(jetspec):
    result = jetspec("gate", "--help")
    assert (result.code, result.err) == (0, "")
    assert "--allow-near-ties" in result.out


def test_json_is_wanted_only_by_our_own_words():
    assert app.wants_json(["gate", "--format", "json"])
    assert app.wants_json(["gate", "--format=json"])
    assert not app.wants_json(["gate", "--format", "table"])
    assert not app.wants_json(["serve", "--", "--format", "json"])


def test_only_listed_errors_have_codes_and_all_are_listed():
    assert exit_codes.of(errors.JetspecError("x")) == exit_codes.BUG
    assert set(exit_codes.CODE_OF_ERROR) == set(CLASSES) - {errors.JetspecError}


@pytest.mark.parametrize(
    ("code", "name"),
    [(2, "ConfigError"), (3, "UnavailableError"), (4, "ArtifactError"), (6, "EngineError"), (1, "EngineError"),
     (5, "EngineError"), (70, "EngineError"), (-9, "EngineError"), (0, "EngineError")],
)  # fmt: skip
def test_a_childs_exit_code_is_taken_for_what_it_says(code, name):
    assert exit_codes.error_class(code).__name__ == name


def test_python_dash_m_and_the_process_exit_code():
    done = subprocess.run([sys.executable, "-m", "jetspec_cli", "serv"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No such command")


def test_a_reader_that_goes_away_does_not_change_the_exit_code():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "jetspec_cli", "--version"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
