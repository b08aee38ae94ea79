"""Tools are found by name, never by an absolute path, and no GPU is named by a number (R21, R32, case 32).

Read from the source's string constants; what a user gives at run time is theirs.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PLACES = re.compile(r"(^|[\s'\"=:])(/(usr|opt|bin|sbin|home|root|mnt|data|scratch|work|Users)/|[A-Z]:\\)")
GPUS = re.compile(r"\bcuda:\d|CUDA_VISIBLE_DEVICES=|--base-gpu-id=\d")


def offences(text: str) -> list[str]:
    """Return the string constants, docstrings aside, that name a place or a GPU."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree)
            if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
    texts = [
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
    ]
    return [f"{n.lineno}: {n.value!r}" for n in texts if PLACES.search(n.value) or GPUS.search(n.value)]


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_R21_R32_case_32_no_source_names_a_place_or_a_gpu(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [ROOT / "Makefile", ROOT / ".ci" / "run", *ROOT.glob(".github/workflows/*.yml")])
def test_R32_case_32_nor_does_what_builds_and_checks_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#!") and (PLACES.search(line) or GPUS.search(line))] == []


@pytest.mark.parametrize(
    "text", ["run('/usr/bin/nvidia-smi')", "x = 'cuda:0'", "x = f'PATH=/opt/{y}/bin'", "x = '/home/me/x'"]
)
def test_the_search_finds_them(text: str) -> None:
    assert offences(text)


def test_a_web_address_and_a_route_are_no_places() -> None:
    assert not offences('a = "https://host/usr/x"\nb = "/generate"\nc = "cuda"')
