"""What reaches a terminal: text from anywhere shows itself and nothing else, in characters the terminal has."""

import io
import json

import pytest

from jetspec_cli import console


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nµ 猫 🐈", "plain\ttext\nµ 猫 🐈"),
        ("\x1b[2Jgate passed", "\\u001b[2Jgate passed"),
        ("a\rb\x07\x00\x7f\x9b31m", "a\\rb\\u0007\\u0000\\u007f\\u009b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_would_steer_a_terminal_is_escaped(text, shown):
    assert console.printable(text) == shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode_gets_escapes_and_json_stays_json(encoding, monkeypatch):
    document = {"text": "µ 猫 🐈 ✅ \x9b"}
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    console.data_json(document)
    written = stream.buffer.getvalue().decode(encoding)
    assert json.loads(written) == document
    assert ("µ" in written) == (encoding != "ascii")
