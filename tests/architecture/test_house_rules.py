"""Rules of the house that no linter holds: every module says what it is, and stays small."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
MAX_LINES = 300


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-3:]))
def test_modules_are_small_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert path.name == "__main__.py" or ast.get_docstring(ast.parse(text)), "no module docstring"
    assert path.name != "utils.py"


def test_there_is_something_to_check():
    assert len(SOURCES) > 100
