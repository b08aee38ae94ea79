"""No file that a user is given can run code: no pickle is read or written, no remote code trusted, nothing evaluated.

Read from the source; ``startup/test_no_unpickling.py`` has the interpreter itself say so.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "yaml", "cloudpickle"}
CALLS = {"torch.load", "torch.save", "np.load", "numpy.load", "eval", "exec", "compile", "os.system", "__import__"}
FILES = sorted(SOURCE.rglob("*.py"))


def spelled(node: ast.expr) -> str:
    """Return a dotted name as it is written, or an empty string."""
    if isinstance(node, ast.Attribute):
        return f"{spelled(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offences(text: str) -> list[str]:
    """Return the lines that could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {one.name}" for one in node.names if one.name in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.append(f"{node.lineno}: from {node.module}")
        elif isinstance(node, ast.Call):
            if spelled(node.func) in CALLS:
                found.append(f"{node.lineno}: {spelled(node.func)}()")
            for keyword in node.keywords:
                is_on = not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
                if keyword.arg in ("trust_remote_code", "allow_pickle", "shell") and is_on:
                    found.append(f"{node.lineno}: {keyword.arg}")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_no_source_unpickles_evaluates_or_trusts_code(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "torch.load(p)", "np.load(p, allow_pickle=True)", "eval(x)",
     "AutoModel.from_pretrained(x, trust_remote_code=True)", "run(x, shell=flag)"],
)  # fmt: skip
def test_the_search_finds_them(text: str) -> None:
    assert offences(text)
