"""A target and a head found by name and checked against each other; what the model store shows of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from jetspec_engine import registry
from jetspec_engine.draft import shipped
from jetspec_engine.embedded import pair
from jetspec_engine.errors import ArtifactError
from support.tiny_heads import head_document
from support.tiny_models import make_tiny_target

FITTING = {"hidden_size": 48, "vocab_size": 320, "num_target_layers": 4, "max_position_embeddings": 512}


def write_head(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(head_document(**{**FITTING, **changes})))
    save_file({"fc.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_tiny_target(tmp_path / "target", num_layers=4)


def ship(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Pretend that this head comes with the package for the demo target."""
    monkeypatch.setattr(pair, "shipped_head_folder", lambda name: folder if name in shipped.SHIPPED_HEADS else None)


def test_a_pair_is_resolved_and_inspected(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", max_position_embeddings=256)
    shown = registry.model_store().inspect(str(target), str(head), tmp_path)
    assert shown["target"]["path"] == str(target)
    assert shown["target"]["config"]["hidden_size"] == shown["head"]["config"]["hidden_size"] == 48
    assert shown["head"]["config"]["is_causal"] is True, "the resolved causality is shown"
    assert shown["head"]["weights"] == {"num_files": 1, "num_tensors": 1, "dtypes": ["F32"]}
    assert shown["pair"]["max_seq_len"] == 256
    assert shown["pair"]["limited_by"] == "head"
    assert "256" in shown["pair"]["notice"]
    assert json.loads(json.dumps(shown))["pair"]["max_seq_len"] == 256, "plain data"


def test_R29_a_head_with_another_tokenizer_is_refused_by_name(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head")
    document = json.loads((target / "tokenizer.json").read_text())
    (head / "tokenizer.json").write_text(json.dumps(document))
    registry.model_store().inspect(str(target), str(head), tmp_path)
    *_, first, second = document["model"]["vocab"]
    vocab = document["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (head / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=r"head/tokenizer\.json: token "):
        registry.model_store().inspect(str(target), str(head), tmp_path)


@pytest.mark.parametrize("which", ["target", "head"])
@pytest.mark.parametrize("length", [None, 0, 20, 70])
def test_case_20_inspecting_looks_at_the_weights_too(
    target: Path, tmp_path: Path, which: str, length: int | None
) -> None:
    head = write_head(tmp_path / "head")
    path = tmp_path / which / "model.safetensors"
    whole = path.read_bytes()
    path.unlink() if length is None else path.write_bytes(whole[:length])
    with pytest.raises(ArtifactError, match=which):
        registry.model_store().inspect(str(target), str(head), tmp_path)


def test_case_20_a_broken_target_does_not_hide_behind_a_missing_head(target: Path, tmp_path: Path) -> None:
    (target / "model.safetensors").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"target/model\.safetensors: header of 0 bytes"):
        registry.model_store().inspect(str(target), "auto", tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_size": 64}, "hidden_size"),
        ({"vocab_size": 319}, "vocab_size"),
        ({"num_target_layers": 5}, "num_target_layers"),
        ({"eos_token_id": 9}, "eos_token_id"),
        ({"bos_token_id": 9}, "bos_token_id"),
    ],
)
def test_R29_a_head_of_another_target_is_refused(
    target: Path, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    head = write_head(tmp_path / "head", **changes)
    with pytest.raises(ArtifactError, match=rf"head/config\.json: {key}"):
        pair.resolve_pair(str(target), str(head), tmp_path)


def test_the_shipped_head_belongs_to_its_target_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_head(tmp_path / "head")
    ship(monkeypatch, head)
    for target in ("smollm2-135m", str(tmp_path / "cache" / "smollm2-135m")):
        assert pair.resolve_head("auto", target, tmp_path) == head
    assert pair.resolve_head("smollm2-135m-head", "whatever", tmp_path) == head
    assert registry.model_store().pull("smollm2-135m-head", tmp_path, lambda _: None) == head


def test_a_target_without_a_shipped_head_needs_one_named(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="head 'auto': no draft head comes with this package for target") as caught:
        pair.resolve_pair(str(target), "auto", tmp_path)
    assert "smollm2-135m" in caught.value.hint


def test_the_list_shows_targets_and_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = write_head(tmp_path / "head")
    for folder, is_present in ((head, True), (None, False)):
        ship(monkeypatch, folder)
        shown = {entry["name"]: entry for entry in registry.model_store().list(tmp_path / "cache")}
        assert shown["smollm2-135m"]["kind"] == "target"
        assert shown["smollm2-135m-head"]["kind"] == "head"
        assert shown["smollm2-135m-head"]["is_present"] is is_present
        assert set(shown["smollm2-135m-head"]) == set(shown["smollm2-135m"])


def test_inspecting_loads_no_torch(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head")
    script = (
        "import sys\nfrom pathlib import Path\nfrom jetspec_engine import registry\n"
        "registry.model_store().inspect(sys.argv[1], sys.argv[2], Path(sys.argv[3]))\nprint('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(target), str(head), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
