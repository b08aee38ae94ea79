"""Result files that somebody changed, cut or made up: matrix answers, or refuses in one line; never exit 70."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetspec_cli import app
from support.mock_server import Script
from support.stream_server import stream_server

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
FORMATS = ("table", "json", "md", "csv", "html")
EXPECTED_CODES = {0, 1, 4, 5}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sweep's folder."""
    folder = tmp_path_factory.mktemp("swept")
    rows = ({"id": f"p{n}", "prompt": f"text {n}", "class": ("code", "prose")[n % 2]} for n in range(2))
    (folder / "p.jsonl").write_text("".join(json.dumps({**row, "max_new_tokens": 8}) + "\n" for row in rows))
    with stream_server(Script()) as (url, _):
        words = ["sweep", "--prompts", str(folder / "p.jsonl"), "--url", url, "--tree-width", "4,8", "--budget", "16"]
        assert app.run([*words, "--out", str(folder / "r")]) == 0
    return folder / "r"


def documents(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json"))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything inside a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        found += [place for index, item in enumerate(value) for place in places(item, (*path, index))]
    return found


def shown(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = app.run(["matrix", str(folder), "--format", kind])
    said = capsys.readouterr()
    assert code in EXPECTED_CODES, said.err
    assert "Traceback" not in said.err
    if code in (4, 5) and kind != "json":
        assert said.err.startswith("error: ")
        assert len(said.err.split("\n\n")[0].splitlines()) == 1


@FUZZ
@given(data=st.data())
def test_case_31_a_changed_document_is_shown_or_refused(
    data: st.DataObject, swept: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(swept, tmp_path_factory.mktemp("m") / "r"))
    path = data.draw(st.sampled_from(documents(folder)))
    document = copy.deepcopy(json.loads(path.read_text()))
    place = data.draw(st.sampled_from(places(document)))
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[place[-1]] = data.draw(VALUES)
    else:
        del holder[place[-1]]
    path.write_text(json.dumps(document))
    shown(folder, data.draw(st.sampled_from(FORMATS)), capsys)


@FUZZ
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | VALUES.map(lambda x: json.dumps(x).encode())
)
def test_case_31_any_bytes_are_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("m")
    (folder / "summary.json").write_bytes(content)
    (folder / "sweep.json").write_bytes(content)
    shown(folder, "table", capsys)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"\xff\xfe{", b"\0" * 40])
@pytest.mark.parametrize("by_name", [True, False])
def test_what_the_parser_itself_gives_up_on_is_refused(
    content: bytes, by_name: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.json").write_bytes(content)
    assert app.run(["matrix", str(tmp_path / "sweep.json" if by_name else tmp_path)]) == 4
    said = capsys.readouterr().err
    assert len(said.split("\n\n")[0].splitlines()) == 1


def test_case_31_a_torn_result_beside_a_whole_one_does_not_vanish(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(swept, tmp_path / "r"))
    whole = (folder / "sweep.json").read_bytes()
    (folder / "torn.json").write_bytes(whole[: len(whole) // 2])
    assert app.run(["matrix", str(folder)]) == 4
    assert "torn.json: not JSON" in capsys.readouterr().err
