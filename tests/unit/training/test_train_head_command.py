"""The command turns flags into the trainer's options and prints its table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jetspec_cli.commands.train_head import train_head
from jetspec_engine import registry

ROW = {"linear": 3.5, "best_first_16": 4.25}


class _Recorder:
    def __init__(self) -> None:
        self.options: Mapping[str, Any] = {}

    def train(self, options: Mapping[str, Any], on_progress: object) -> Mapping[str, Any]:
        self.options = options
        return {"evaluation": {"accept_length": {"code": ROW, "pooled": ROW}}}


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> _Recorder:
    made = _Recorder()
    monkeypatch.setattr(registry, "head_trainer", lambda: made)
    return made


def _run(*words: str) -> Any:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(train_head)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_flags_and_settings_become_options(trainer: _Recorder, tmp_path: Path) -> None:
    prompts = tmp_path / "code.jsonl"
    prompts.write_text(json.dumps({"id": "a", "class": "code", "prompt": "Write one."}) + "\n")
    result = _run(
        "--out", str(tmp_path / "head"), "--target", "some/target", "--generate-s", "5", "--train-s", "9",
        "--layers", "3", "--target-layers", "1,5", "--batch", "8", "--anchors", "4", "--lr", "0.01", "--seed", "7",
        "--held-out", str(prompts), "--set", "write.num_rows=64", "--set", "train.optimizer=adamw", "--resume",
    )  # fmt: skip
    assert result.exit_code == 0
    o = trainer.options
    assert o["write"] == {"num_rows": 64, "seconds": 5.0}
    assert o["train"] == {
        "optimizer": "adamw", "seconds": 9.0, "batch": 8, "short_anchors": 4, "lr": 0.01, "seed": 7,
    }  # fmt: skip
    assert (o["target"], o["num_layers"], o["target_layer_ids"], o["resume"]) == ("some/target", 3, [1, 5], True)
    assert o["work"] == tmp_path / "head" / "work"
    assert o["held_out"] == [{"class": "code", "messages": [("user", "Write one.")]}]
    assert result.stdout.splitlines()[0].split() == ["accept", "length", "linear", "best_first_16"]
    assert result.stdout.splitlines()[1].split() == ["code", "3.5", "4.25"]


def test_json_is_the_record(trainer: _Recorder, tmp_path: Path) -> None:
    result = _run("--out", str(tmp_path), "--format", "json")
    assert json.loads(result.stdout)["evaluation"]["accept_length"]["code"] == ROW
    assert "resume" in trainer.options
    assert trainer.options["write"] == {}
