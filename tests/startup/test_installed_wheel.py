"""What a user gets: the wheel, built and installed without extras into an empty environment.

Needs the package registry, so it is no part of the default run; CI runs it by its marker.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from jetspec_cli.serving.launcher import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIGHT = {"jetspec", "typer", "rich", "httpx"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True)
    (built,) = folder.glob("jetspec-*.whl")
    return built


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Install the wheel; return what runs a command of the new environment in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JETSPEC_API_KEY")}
    environment |= {"JETSPEC_CACHE": str(folder / "cache"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def command(*words: object) -> "subprocess.CompletedProcess[str]":
        program, *rest = map(str, words)
        done = [programs / program, *rest]
        return subprocess.run(
            done, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )

    return command


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of this environment, which has the engine."""
    pytest.importorskip("torch")
    words = ["--target", "random:qwen3-moe", "--drafter", "recall", "--device", "cpu", "--dtype", "float32"]
    with ServerProcess([*words, "--tree-width", "4", "--budget", "16", "--threads", "1"]) as server:
        yield server.url


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    rows = [{"id": f"p{n}", "input_ids": [n + 7, 9, 11, 13], "max_new_tokens": 24} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_wheel_holds_the_packages_and_the_head_and_nothing_else(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"jetspec_cli", "jetspec_engine"}
    assert any(name.endswith("smollm2-135m-head/model-00001-of-00003.safetensors") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_line_needs_three_packages_and_shows_its_help(run: Run) -> None:
    listed = {row["name"] for row in json.loads(run("pip", "list", "--format", "json").stdout)}
    assert listed >= LIGHT
    assert not listed & {"torch", "numpy", "transformers", "fastapi", "pydantic"}
    shown = run("jetspec", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(name in shown.stdout for name in ("serve", "gate", "bench", "sweep", "matrix"))


def test_R53_it_gates_and_measures_a_server_by_its_url(run: Run, url: str, prompts: Path) -> None:
    gate = run("jetspec", "gate", "--url", url, "--prompts", prompts, "--oracle", "linear,greedy")
    assert gate.returncode == 0, gate.stderr
    assert "gate passed: 6/6 identical" in gate.stdout
    bench = run("jetspec", "bench", "--url", url, "--prompts", prompts, "--repeat", 3, "--out", "b.json")
    assert bench.returncode == 0, bench.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["serve"], "embedded"),
        (["gate", "--prompts", "PROMPTS"], "embedded"),
        (["gate", "--self-test"], "embedded"),
        (["bench", "--prompts", "PROMPTS"], "embedded"),
        (["sweep", "--prompts", "PROMPTS", "--out", "swept"], "embedded"),
        (["profile"], "embedded"),
        (["models", "pull", "smollm2-135m"], "embedded"),
        (["train-head", "--target", "smollm2-135m", "--out", "head"], "embedded"),
        (["serve", "--engine", "sglang"], "sglang"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_needs_an_extra_says_which(run: Run, prompts: Path, words: list[str], extra: str) -> None:
    done = run("jetspec", *(str(prompts) if word == "PROMPTS" else word for word in words))
    # A command that starts a server says so before it learns that it cannot.
    said = re.sub(r"^starting a server.*\n", "", done.stderr)
    error, _, hint = said.strip().partition("\n\n")
    assert done.returncode == 3, done.stderr
    assert error.startswith("error: ")
    assert "\n" not in error
    assert f"pip install 'jetspec[{extra}]'" in hint


def test_doctor_says_what_is_missing(run: Run) -> None:
    done = run("jetspec", "doctor")
    assert (done.returncode, done.stderr) == (3, "")
    assert "pip install 'jetspec[embedded]'" in done.stdout
