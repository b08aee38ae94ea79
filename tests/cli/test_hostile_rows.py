"""Rows of a measurement that were cut, changed or made up: it goes on with the whole ones, or refuses in one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetspec_cli import app
from support.mock_server import Script
from support.stream_server import stream_server

FUZZ = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """The words of a bench that was run once, and its rows; the server is still there."""
    folder = tmp_path_factory.mktemp("b")
    prompts = folder / "p.jsonl"
    prompts.write_text("".join(f'{{"id": "p{n}", "prompt": "text {n}", "max_new_tokens": 8}}\n' for n in range(2)))
    with stream_server(Script()) as (url, _):
        words = ["bench", "--prompts", str(prompts), "--url", url, "--repeat", "2", "--out", str(folder / "b.json")]
        assert app.run(words) == 0
        yield words, folder / "b.requests.ndjson"


def resumed(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = app.run(words)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if code:
        assert sum(line.startswith("error: ") for line in said.splitlines()) == 1
    return code, said


@FUZZ
@given(data=st.data())
def test_case_27_cut_anywhere_it_goes_on_from_the_whole_rows(
    data: st.DataObject, measured: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, path = measured
    whole = path.read_bytes()
    num_rows = whole.count(b"\n")
    try:
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        assert resumed(words, capsys)[0] == 0
        kept = path.read_bytes()
    finally:
        path.write_bytes(whole)
    assert kept.count(b"\n") == num_rows
    assert all(json.loads(line) for line in kept.splitlines())


@FUZZ
@given(data=st.data())
def test_case_27_a_changed_row_is_measured_again_or_refused(
    data: st.DataObject, measured: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, path = measured
    whole = path.read_bytes()
    lines = whole.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    row: dict[str, Any] = json.loads(lines[number])
    key = data.draw(st.sampled_from(sorted(row)))
    if data.draw(st.booleans()):
        row[key] = data.draw(VALUES)
    else:
        del row[key]
    lines[number] = json.dumps(row).encode()
    try:
        path.write_bytes(b"\n".join(lines) + b"\n")
        code, said = resumed(words, capsys)
    finally:
        path.write_bytes(whole)
    assert code in (0, 2, 4), said


@pytest.mark.parametrize(
    "content", [b"\0" * 200, b"[]\n", b"[" * 100_000 + b"\n", b"my notes, without a line's end", b'{"kind": "rows"}\n']
)
def test_what_is_no_file_of_rows_is_refused_and_left_as_it_is(
    content: bytes, measured: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, path = measured
    whole = path.read_bytes()
    try:
        path.write_bytes(content)
        code, said = resumed(words, capsys)
        assert (code, path.read_bytes()) == (4, content)
        assert f"{path}:1: not" in said
    finally:
        path.write_bytes(whole)


def test_a_folder_in_the_rows_place_is_refused_before_anything_is_measured(
    measured: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = measured
    (tmp_path / "o.requests.ndjson").mkdir()
    code, said = resumed([*words[:-1], str(tmp_path / "o.json")], capsys)
    assert code == 2
    assert "o.requests.ndjson: a folder, expected a file" in said
    assert "reaching" not in said
