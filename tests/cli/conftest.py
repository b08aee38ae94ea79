"""Fixtures of the command line's tests: prompts files, and commands run in this process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jetspec_cli import app


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def jetspec(capsys, monkeypatch, tmp_path):
    """Run one command line in this process, in a folder of its own: a mismatch leaves its evidence there."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "JETSPEC_API_KEY", "JETSPEC_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str | Path) -> Result:
        code = app.run([str(word) for word in words])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Four short prompts of three kinds and two classes."""
    rows = [
        {"id": "text-1", "prompt": "one", "class": "prose"},
        {"id": "text-2", "prompt": "two", "class": "prose"},
        {"id": "chat-1", "messages": [{"role": "user", "content": "three"}], "class": "chat"},
        {"id": "ids-1", "input_ids": [5, 6, 7], "class": "chat"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({**row, "max_new_tokens": 16}) + "\n" for row in rows))
    return path
