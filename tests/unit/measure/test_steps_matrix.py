"""Step costs become documents that ``jetspec matrix`` renders, tok/s derived for stated accept lengths."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jetspec_cli import app

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("steps")
    source = ROOT / "results" / "h200" / "sglang" / "steps-backends.json"
    command = [sys.executable, "-m", "tests.measure.steps_matrix", str(source), f"--out={out}", "--lengths=3,5"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    return out


def test_one_document_a_backend_with_trees(folder):
    assert [path.name for path in sorted(folder.iterdir())] == ["steps-fa3.json", "steps-fa4.json"]
    cells = {cell["label"]: cell for cell in json.loads((folder / "steps-fa3.json").read_text())["cells"]}
    assert list(cells)[:3] == ["plain", "linear", "W1 on the tree server"]
    tree = cells["W8 B64"]
    assert tree["against"]["linear"]["step_cost_ratio"] == pytest.approx(1.139, abs=1e-3)
    assert tree["tok_s_at"]["5"] == pytest.approx(5 / tree["round_s"]["median"])
    assert list(cells["plain"]["tok_s_at"]) == ["1"]


@pytest.mark.parametrize("kind", ["table", "md", "csv", "html", "svg"])
def test_they_are_rendered_by_width_budget_and_backend(folder, tmp_path, kind):
    if kind == "svg":
        pytest.importorskip("matplotlib")
    assert app.run(["matrix", str(folder), "--format", kind, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").stat().st_size > 1000


def test_what_a_reader_sees(folder, capsys):
    assert app.run(["matrix", str(folder), "--format", "json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["setting"]["attention"] for group in groups] == ["fa3", "fa4"]
    matrices = {matrix["metric"]: matrix for matrix in groups[0]["matrices"]}
    assert set(matrices) == {"round_ms", "step_cost_ratio", "tok_s_at"}
    assert (matrices["round_ms"]["rows"], matrices["round_ms"]["columns"]) == ([1, 8], [16, 32, 64, 128])
    assert matrices["tok_s_at"]["columns"] == ["1", "3", "5"]
    assert app.run(["matrix", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "sglang fa4, bfloat16 on cuda" in shown
    assert "nothing was gated" in shown
