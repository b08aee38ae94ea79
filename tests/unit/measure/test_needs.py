"""What measuring scripts need of the machine: said in one line before anything is started or written."""

import importlib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BOTH = "needs sglang 0.5.17 and a CUDA GPU"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"tests.measure.{name}")


@pytest.fixture
def machine(load, monkeypatch):
    """Sets what the machine has."""
    needs = load("needs")

    def has(version=None, gpus=0, modules=(), programs=()):
        def version_of(name):
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(needs.metadata, "version", version_of)
        monkeypatch.setattr(needs.backend, "count_gpus", lambda: gpus)
        monkeypatch.setattr(needs, "find_spec", lambda name: name in modules or None)
        monkeypatch.setattr(needs.shutil, "which", lambda name: name if name in programs else None)
        return needs

    return has


@pytest.mark.parametrize(
    ("script", "words", "line"),
    [
        ("sglang_steps", ["--out=o.json"], f"{BOTH}; missing here: sglang 0.5.17, a CUDA GPU"),
        ("sglang_pair", ["--out=o.json"], f"{BOTH}; missing here: sglang 0.5.17, a CUDA GPU"),
        ("sglang_hybrid", ["--out=o.json"], f"{BOTH}; missing here: sglang 0.5.17, a CUDA GPU"),
        ("sglang_hybrid", ["--out=o.json", "--cpu"], "needs sglang 0.5.17; missing here: sglang 0.5.17"),
        (
            "sglang_memcheck",
            ["--out=o.json"],
            f"{BOTH} and compute-sanitizer; missing here: sglang 0.5.17, a CUDA GPU, compute-sanitizer",
        ),
        ("gpu_cases", ["--out=o.json"], "needs a CUDA GPU and pytest; missing here: a CUDA GPU, pytest"),
        ("clients", ["--out=o.json", "--url=u", "--tokenizer=t"], "needs sglang 0.5.17; missing here: sglang 0.5.17"),
    ],
)
def test_a_script_says_what_is_missing_exits_3_and_writes_nothing(
    *, load, machine, monkeypatch, capsys, tmp_path, script, words, line
):
    machine()
    module = load(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == f"error: {line}"
    assert told.err.splitlines()[-1].startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


def test_another_version_is_missing_too_and_only_what_is_missing_is_hinted(machine, capsys):
    needs = machine(version="0.5.16", gpus=1)
    with pytest.raises(SystemExit):
        needs.exit_without(sglang=True, gpu=True)
    assert capsys.readouterr().err == (
        f"error: {BOTH}; missing here: sglang 0.5.17\n\nhint: pip install '.[sglang,dev]'\n"
    )


def test_a_machine_that_has_it_all_is_let_through(machine, capsys):
    needs = machine(version="0.5.17", gpus=1, modules=("pytest",), programs=("tool",))
    needs.exit_without(sglang=True, gpu=True, packages=["pytest"], programs=["tool"])
    assert capsys.readouterr().err == ""
