"""A pair loads and decodes without one unpickling, seen in a process whose interpreter reports every one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
