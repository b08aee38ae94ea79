"""One call writes, trains, saves and measures; the next one continues; the head is a public checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from jetspec_engine.draft.checkpoint import load_head
from jetspec_engine.embedded.device import pick_device
from jetspec_engine.errors import ArtifactError, ConfigError, InconclusiveError, UnavailableError
from jetspec_engine.records import Progress
from jetspec_engine.training.options import TrainOptions
from jetspec_engine.training.target_files import find_target, read_target
from jetspec_engine.training.trainer import Trainer, choose_device
from support.tiny_models import make_tiny_target

HELD_OUT = [{"class": "code", "messages": [("user", "Write one.")]}, {"class": "chat", "messages": [("user", "Hi.")]}]


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), num_layers=3, max_position_embeddings=2048)


def _options(target: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    write = {"seconds": 30, "max_rows": 24, "num_rows": 12, "user_max": 4, "answer_max": 24, "check_every": 8}
    train = {"max_steps": 6, "batch": 4, "short_anchors": 4, "full_anchors": 2, "log_every": 3, "chunk": 256}
    base = {
        "target": str(target), "out": folder / "head", "work": folder / "work", "device": "cpu", "num_layers": 2,
        "block_size": 6, "target_layer_ids": [0, 1], "num_prompts": 60, "num_held_out": 3, "held_out": HELD_OUT,
        "eval_tokens": 12, "tree_width": 4, "write": write, "train": train,
    }  # fmt: skip
    return {**base, **changes}


def test_a_call_makes_a_public_checkpoint_and_the_next_continues(target_folder: Path, tmp_path: Path) -> None:
    news: list[Progress] = []
    record = Trainer().train(_options(target_folder, tmp_path, train_part_s=1e-9), news.append)
    assert record["training"]["steps"] == 0
    first = _options(target_folder, tmp_path)
    with pytest.raises(ConfigError, match="earlier run"):
        Trainer().train(first, news.append)
    record = Trainer().train({**first, "resume": True, "write": {"seconds": 0}}, news.append)
    assert record["training"]["steps"] == 6
    assert [p["step"] for p in record["curve"]] == [3, 6]
    assert set(record["evaluation"]["accept_length"]) == {"code", "chat", "pooled", "class_mean"}
    assert record["text"][0]["teacher_forced_agreement"] == 1.0
    assert any("resumed at step 0" in p.label for p in news)
    assert json.loads((tmp_path / "head" / "training.json").read_text()) == json.loads(json.dumps(record))
    head = load_head(tmp_path / "head")
    assert head.config.is_causal
    assert head.config.target_layer_ids == (0, 1)
    raw = json.loads((tmp_path / "head" / "config.json").read_text())
    assert raw["is_causal"] is raw["dflash_config"]["causal"] is raw["dflash_config"]["causal_head"] is True


@pytest.mark.parametrize("resume", [False, True])
def test_a_head_never_replaces_the_target(target_folder: Path, tmp_path: Path, resume: bool) -> None:
    folder = Path(shutil.copytree(target_folder, tmp_path / "model"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    options = _options(folder, tmp_path, out=folder, work=tmp_path / "work", resume=resume)
    with pytest.raises(ConfigError, match=r"it holds config\.json, a model that would be replaced"):
        Trainer().train(options, lambda _: None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_head_replaces_only_its_own_run(target_folder: Path, tmp_path: Path) -> None:
    made = _options(target_folder, tmp_path, train_part_s=1e-9, held_out=[])
    Trainer().train(made, lambda _: None)
    with pytest.raises(ConfigError, match="a model that would be replaced"):
        Trainer().train({**made, "work": tmp_path / "another"}, lambda _: None)
    # Killed while it saved: weights without their configuration.
    (tmp_path / "head" / "config.json").unlink()
    Trainer().train({**made, "resume": True, "write": {"seconds": 0}}, lambda _: None)
    load_head(tmp_path / "head")


def test_the_record_names_no_place_of_this_machine(target_folder: Path, tmp_path: Path) -> None:
    options = _options(target_folder, tmp_path, held_out=[])
    options["train"]["max_steps"] = 1
    Trainer().train(options, lambda _: None)
    text = (tmp_path / "head" / "training.json").read_text()
    assert str(tmp_path) not in text


def test_no_text_is_said_so(target_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InconclusiveError, match="no conversation"):
        Trainer().train(_options(target_folder, tmp_path, write={"seconds": 0}), lambda _: None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trian": {}}, "unknown key 'trian'"),
        ({"train": {"optimiser": "muon"}}, "unknown key 'optimiser'"),
        ({"train": {"optimizer": "sgd"}}, "optimizer: 'sgd'"),
        ({"write": {"greedy_share": 2}}, "greedy_share: 2"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainOptions.from_mapping({"target": "x", "out": tmp_path, "work": tmp_path, **changes})


def test_targets_the_training_forward_lacks_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path / "t", model_type="qwen3", sliding_window=16)
    with pytest.raises(ArtifactError, match="sliding_window"):
        read_target(folder, device=choose_device("cpu"), dtype=None, max_positions=64)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="no such folder"):
        find_target("nowhere", None, lambda _: None)


def test_cuda_where_there_is_none_is_refused_in_the_words_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    told = []
    for choose in (choose_device, pick_device):
        with pytest.raises(UnavailableError) as caught:
            choose("cuda")
        told.append((caught.value.what, caught.value.hint))
    assert told == [("device cuda: 0 CUDA devices here", "use --device cpu")] * 2
