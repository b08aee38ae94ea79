"""Every kernel compiles for a Hopper GPU on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_every_kernel_compiles():
    tests = Path(__file__).parents[2]
    # Whether Triton compiles or interprets is settled when it is imported, so another process.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "support.compile_kernels"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 27
