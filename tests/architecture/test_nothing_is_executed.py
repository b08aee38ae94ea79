"""No file that a user is given can run code: no pickle is read or written, no remote code trusted, nothing evaluated.

Read from the source, and seen in a process whose every unpickling is reported by the interpreter itself.
"""

import ast
import os
import subprocess
import sys
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


WATCHED = """
import sys
seen = []
sys.addaudithook(lambda event, arguments: seen.append(arguments) if event == "pickle.find_class" else None)
import io, pickle
pickle.loads(pickle.dumps(io.BytesIO))
assert seen, "the hook sees nothing"
seen.clear()
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.tiny_pairs import assembled_rig, make_tiny_pair
folder = Path(sys.argv[2])
pair = make_tiny_pair(folder)
for kind in ("target", "head"):
    touch = f"cos\\nsystem\\n(S'touch {folder / 'run'}'\\ntR."
    (folder / kind / "pytorch_model.bin").write_bytes(touch.encode())
    (folder / kind / "modeling_evil.py").write_text("raise SystemExit('executed')")
seen.clear()
with assembled_rig(pair) as rig:
    assert rig.submit([5, 6, 7], max_new_tokens=8, ignore_eos=True).wait().ids
assert not (folder / "run").exists()
print("unpickled", len(seen), seen[:3])
"""


def test_a_pair_loads_and_decodes_without_one_unpickling(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, tests, str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "unpickled 0 []"
