"""R51: what a mismatch leaves behind, from a whole engine with a seeded fault down to a server that tells nothing."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetspec_cli.reporting.bundle import safe_name
from support.mock_server import Script, mock_server

FULL = {
    "candidate.safetensors", "environment.json", "gate.toml", "oracle.safetensors", "prompt.jsonl", "report.json",
    "summary.md", "tokens.json", "trees.json",
}  # fmt: skip
PROMPTS = [[5, 9, 3, 8], [7 + 3 * i % 31 for i in range(20)], [4, 4, 6]]
REDUCED = FULL - {"candidate.safetensors", "oracle.safetensors", "trees.json"}


def flip_third(call: Any, tokens: list[int]) -> list[int]:
    return [*tokens[:2], tokens[2] + 1, *tokens[3:]] if call.is_tree else tokens


@pytest.fixture(scope="module")
def faulty_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server over a real engine in which siblings see each other."""
    pytest.importorskip("torch")
    from jetspec_engine import registry
    from jetspec_engine.config import ServeConfig
    from jetspec_engine.embedded.assembly import build_engine
    from support.live_server import LiveServer
    from support.tiny_pairs import assembled_rig, make_tiny_pair

    pair = {**make_tiny_pair(tmp_path_factory.mktemp("pair")), "device": "cpu", "dtype": "float32", "num_threads": 1}
    with assembled_rig({**pair, "drafter": "wrong"}) as rig:
        texts = {tuple(ids): rig.submit(ids, max_new_tokens=60, ignore_eos=True).wait().ids for ids in PROMPTS}
    recordings = [{"prompt_ids": list(ids), "continuation_ids": text} for ids, text in texts.items()]
    # Right tokens at the second rank: every accepted path has to be moved.
    options = {"recordings": recordings, "rank": 1}
    mutant = next(one for one in registry.self_test().mutants if one.name == "values-not-moved")
    config = ServeConfig(**{**pair, "drafter": "replay", "drafter_options": options})
    with mutant.applied(), LiveServer(build_engine(config, lambda progress: None)) as live:
        yield live.url
        assert live.logs == []


@pytest.fixture
def id_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "ids.jsonl"
    rows = [{"id": f"ids-{n}", "input_ids": ids, "max_new_tokens": 40} for n, ids in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_R51_the_folder_of_a_real_mismatch_is_complete(jetspec, faulty_url, id_prompts, tmp_path):
    out = tmp_path / "gate.json"
    words = ["--tree-width", "4", "--budget", "16", "--out", out]
    result = jetspec("gate", "--prompts", id_prompts, "--url", faulty_url, *words)
    assert result.code == 1
    document = json.loads(out.read_text())
    reports = [one["mismatch"] for one in document["comparisons"] if one["mismatch"]]
    found = [report["forensics"] for report in reports if "forensics" in report]
    assert found
    assert found[0]["candidate"]["finding"]["tensor"] == "commit.values"
    assert found[0]["oracle"]["finding"] is None
    assert reports[0]["verdict"] == "logic"
    folder = Path(found[0]["folder"])
    assert folder.parent == tmp_path / "gate-forensics"
    assert {path.name for path in folder.iterdir()} == FULL
    summary = (folder / "summary.md").read_text()
    assert "commit.values, layer 0" in summary
    assert "jetspec gate --gate gate.toml --url" in summary
    assert "commit.values" in result.out
    from safetensors.torch import load_file

    tensors = load_file(folder / "candidate.safetensors")
    assert tensors["positions.used"].equal(tensors["positions.expected"])


def test_R51_the_folders_own_command_shows_the_mismatch_again(jetspec, faulty_url, id_prompts, tmp_path):
    words = ["--tree-width", "4", "--budget", "16"]
    assert jetspec("gate", "--prompts", id_prompts, "--url", faulty_url, *words).code == 1
    folder = next((tmp_path / "forensics").iterdir())
    again = folder / "again.json"
    result = jetspec("gate", "--gate", folder / "gate.toml", "--url", faulty_url, "--out", again)
    assert result.code == 1
    tokens = json.loads((folder / "tokens.json").read_text())
    runs = json.loads(again.read_text())["runs"]
    assert [run["generation"]["token_ids"] for run in runs if run["role"] == "candidate"] == [
        tokens["candidate"]["token_ids"]
    ]


@pytest.mark.parametrize("kind", ["jetspec", "openai"])
def test_R51_a_server_without_internals_leaves_a_reduced_folder(jetspec, prompts, tmp_path, kind):
    right = Script(kind=kind)
    with mock_server(Script(kind=kind, change=flip_third)) as (url, state), mock_server(right) as (oracle, _):
        state.tree["width"] = 4
        words = ["--oracle-url", oracle] if kind == "openai" else []
        result = jetspec("gate", "--prompts", prompts, "--url", url, *words)
    assert result.code == 1
    folders = sorted((tmp_path / "forensics").iterdir())
    assert len(folders) == 3
    assert {path.name for path in folders[0].iterdir()} == REDUCED
    assert "its internals cannot be seen" in (folders[0] / "summary.md").read_text()
    gate = tomllib.loads((folders[0] / "gate.toml").read_text())
    assert gate["prompts"] == "prompt.jsonl"
    assert "internals cannot be seen" in result.out


def test_R51_an_identical_run_leaves_nothing(jetspec, prompts, tmp_path):
    with mock_server() as (url, _):
        assert jetspec("gate", "--prompts", prompts, "--url", url).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_R51_a_folder_that_cannot_be_written_costs_no_verdict(jetspec, prompts, tmp_path):
    (tmp_path / "forensics").write_text("a file is in the way")
    with mock_server(Script(change=flip_third)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 1
    assert "not kept: forensics folder" in result.out


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a/b\\c", "..", "", "x" * 500, "é\n\0"])
def test_R51_a_prompts_name_never_leads_out_of_the_folder(name, tmp_path):
    made = safe_name(name)
    assert (tmp_path / made).resolve().parent == tmp_path.resolve()
    assert 0 < len(made) <= 60
