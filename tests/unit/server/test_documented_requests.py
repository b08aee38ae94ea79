"""The requests that the documentation shows are answered as they are written (R28)."""

import re
import shlex
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def requests_in(path: Path) -> list[str]:
    """Return the curl command lines in a document's fenced blocks, continuations joined."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines if re.match(r"\s*(\$ )?curl\s", line)]


SHOWN = [(path.name, line) for path in DOCUMENTS for line in requests_in(path)]


def test_there_is_something_to_check() -> None:
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("document", "line"), SHOWN, ids=[f"{name}: {line[:60]}" for name, line in SHOWN])
def test_R28_a_documented_request_is_answered(client: httpx.Client, document: str, line: str) -> None:
    _, address, *words = shlex.split(line)
    assert address.startswith("127.0.0.1:30000/"), document
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert set(options) <= {"-H", "-d"}
    name, _, value = options.get("-H", "").partition(": ")
    path = address.removeprefix("127.0.0.1:30000")
    answer = client.request("POST" if "-d" in options else "GET", path, headers={name: value} if name else {},
                            content=options.get("-d"))  # fmt: skip
    assert answer.status_code == 200, answer.text
