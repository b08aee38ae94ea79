"""The real SGLang wheel on a machine without a GPU: what it imports of its own kernels is stood in for.

These tests carry the marker ``sglang``, are no part of the default run and are skipped where sglang is not importable.
They cover start-up in this process, and whole rounds in processes of their own (``drive_scheduler``).
"""

import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import pytest

from support.sglang_configs import HEAD, TARGET

if importlib.util.find_spec("torchvision") is None:
    sys.path.append(str(Path(__file__).with_name("stand_ins")))

# SGLang reads it when it is imported; pytest's own process is the one that imports it.
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
try:
    import torch

    if not torch.cuda.is_available():
        # Kernels are interpreted then; Triton reads it when they are defined.
        os.environ.setdefault("TRITON_INTERPRET", "1")
except ModuleNotFoundError:
    pass


def missing_kernel(name):
    """Return a function that says which kernel was called."""

    def call(*_, **__):
        raise NotImplementedError(f"sgl_kernel stand-in: {name}")

    return call


class KernelStandIn(types.ModuleType):
    """A module in which every name is a kernel that is not there."""

    __path__ = ()
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return missing_kernel(name)


def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    for item in items:
        if "tests/sglang/" in item.path.as_posix():
            item.add_marker(pytest.mark.sglang)
            # The wheel warns of deprecations of its own while it is imported.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def plugged():
    """SGLang with its plugins loaded, ours through its entry point."""
    import torch

    if not torch.cuda.is_available():
        sys.modules["sgl_kernel"] = KernelStandIn("sgl_kernel")
    plugins = pytest.importorskip("sglang.srt.plugins", reason="sglang is not installed")
    plugins.load_plugins()
    return plugins


@pytest.fixture
def write_config(tmp_path):
    """Write a model folder that holds only its configuration; returns the path."""

    def write(name, config):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return write


@pytest.fixture
def rows_apart(monkeypatch):
    """Multiply row by row where Triton interprets: a CPU's matrix library gives a row other bits at another place.

    A tensor core does not: there a row's place in the tile is not supposed to matter, which the GPU run of these
    tests is to show.
    """
    import numpy as np
    import torch

    if torch.cuda.is_available():
        return

    whole = np.matmul

    def by_rows(a, b, **options):
        return np.concatenate([whole(a[row : row + 1], b, **options) for row in range(a.shape[0])])

    monkeypatch.setattr(np, "matmul", by_rows)


@pytest.fixture
def resolve(plugged, write_config):
    """Resolve a command line as SGLang's server does, up to the point where it would load models."""

    def run(*words, head=None, target=None, algorithm="JETSPEC"):
        from sglang.srt.server_args import prepare_server_args

        base = [
            f"--model-path={write_config('target', target or TARGET)}", f"--speculative-algorithm={algorithm}",
            f"--speculative-draft-model-path={write_config('head', head or HEAD)}", "--device=cuda",
            "--attention-backend=triton",
        ]  # fmt: skip
        return prepare_server_args([*base, *words])

    return run
