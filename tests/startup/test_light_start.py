"""The command starts fast and light: nothing heavy is imported before a command needs it."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# What only commands that need it may import; the first line is heavy, the second is merely not needed for help.
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "safetensors", "sglang", "flashinfer", "triton", "pydantic"}
UNNEEDED = {"fastapi", "starlette", "uvicorn", "httpx", "rich", "matplotlib", "gguf"}

REPORT = """
import json, sys
from jetspec_cli import app
code = app.run({words!r})
sys.stderr.write("\\nMODULES " + json.dumps([code, sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""


def modules_after(*words: str) -> tuple[int, set[str]]:
    """Run a command line in a fresh interpreter; return its exit code and the top-level modules it imported."""
    script = REPORT.format(words=list(words))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    code, modules = json.loads(done.stderr.rpartition("MODULES ")[2])
    return code, set(modules)


@pytest.mark.parametrize("words", [["--help"], ["gate", "--help"], ["serve", "--help"], ["--version"], ["nonsense"]])
def test_help_and_usage_errors_import_nothing_heavy(words):
    code, modules = modules_after(*words)
    assert code == (2 if words == ["nonsense"] else 0)
    assert not modules & (HEAVY | UNNEEDED)


def test_a_gate_against_a_url_needs_no_torch(tmp_path):
    from support.mock_server import mock_server

    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x", "max_new_tokens": 8}\n')
    with mock_server() as (url, _):
        code, modules = modules_after("gate", "--prompts", str(prompts), "--url", url)
    assert code == 0
    assert "httpx" in modules
    assert not modules & HEAVY


def test_the_check_above_can_see_a_heavy_import():
    script = "import json, sys, pydantic; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


WITHOUT_TRANSFORMERS = """
import importlib, pkgutil, sys
from pathlib import Path
sys.modules["transformers"] = None  # importing it fails
import jetspec_engine
from support.tiny_pairs import assembled_rig, make_tiny_pair
for module in pkgutil.walk_packages(jetspec_engine.__path__, "jetspec_engine."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        # The plugin's inner modules run inside sglang only.
        if (error.name or "").partition(".")[0] not in ("sglang", "triton"):
            raise
with assembled_rig(make_tiny_pair(Path(sys.argv[1]))) as rig:
    rendered = rig.engine.tokenizer.render_chat([{"role": "user", "content": "hi"}])
    print(len(rig.run(rig.engine.tokenizer.encode_rendered(rendered), max_new_tokens=5, ignore_eos=True).ids))
"""


def test_the_engine_never_needs_transformers(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=TESTS)
    assert done.stdout.strip() == "5", done.stderr


def test_help_takes_under_200_ms():
    # Seconds of processor time: what the start costs, however many other programs run beside the test.
    assert min(_help_cpu_seconds() for _ in range(5)) < 0.2


def _help_cpu_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "jetspec_cli", "--help"], capture_output=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_whoever_ignores_sigterm_for_us_means_it():
    program = "import signal; from jetspec_cli import __main__ as m; m.take_sigterm(); print([signal.getsignal(15)])"
    ignored = f"import signal; signal.signal(15, signal.SIG_IGN); {program}"
    shown = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
        for text in (program, ignored)
    ]
    assert "default_int_handler" in shown[0]
    assert "SIG_IGN" in shown[1]


def test_ctrl_c_while_the_program_loads_is_130_and_no_failed_gate():
    program = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "jetspec_cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from jetspec_cli.__main__ import start
start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
