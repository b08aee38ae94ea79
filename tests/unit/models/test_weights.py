"""Loading safetensors: the right tensors, and every wrong file named (case 20)."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tensor_table import expected_tensors
from jetspec_engine.models.weights import load_weights
from support.tiny_models import make_tiny_target, random_tensors, write_checkpoint


def make(folder: Path, **options: Any) -> tuple[Path, DecoderConfig]:
    make_tiny_target(folder, with_tokenizer=False, **options)
    return folder, DecoderConfig.from_folder(folder)


def change(folder: Path, name: str, tensor: torch.Tensor | None, new_name: str | None = None) -> None:
    """Replace, rename or remove one tensor of a single-file checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    old = tensors.pop(name, None)
    value = tensor if tensor is not None else old if new_name else None
    if value is not None:
        tensors[new_name or name] = value.contiguous()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_family_loads_equal_tensors(tmp_path: Path, model_type: str, num_shards: int) -> None:
    folder, config = make(tmp_path, model_type=model_type, num_shards=num_shards, is_tied=num_shards == 1)
    loaded = load_weights(folder, config, dtype=torch.float32)
    written = random_tensors(config)
    assert loaded.keys() == written.keys() == expected_tensors(config).keys()
    assert all(torch.equal(loaded[name], written[name]) for name in written)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_dtypes_are_converted(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    folder, config = make(tmp_path, dtype=stored)
    loaded = load_weights(folder, config, dtype=wanted)
    written = random_tensors(config, dtype=stored)
    assert all(torch.equal(loaded[name], written[name].to(wanted)) for name in written)


def test_matching_dtype_is_not_copied(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    loaded = load_weights(folder, config, dtype=torch.float32)
    content = (folder / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    bases = {tensor.data_ptr() - header[f"model.{name}"]["data_offsets"][0] for name, tensor in loaded.items()}
    assert len(bases) == 1, "every tensor lies in one mapping at its offset in the file"


def test_names_without_the_prefix_load_too(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    save_file(random_tensors(config), folder / "model.safetensors")
    assert load_weights(folder, config, dtype=torch.float32).keys() == expected_tensors(config).keys()


def test_old_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    change(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))
    assert load_weights(folder, config, dtype=torch.float32).keys() == expected_tensors(config).keys()


def test_a_copy_of_a_tied_head_is_dropped_and_another_matrix_refused(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    embedding = random_tensors(config)["embed_tokens.weight"]
    change(folder, "lm_head.weight", embedding.clone())
    assert "lm_head.weight" not in load_weights(folder, config, dtype=torch.float32)
    change(folder, "lm_head.weight", embedding + 1)
    with pytest.raises(ArtifactError, match=r"lm_head\.weight differs") as caught:
        load_weights(folder, config, dtype=torch.float32)
    assert "tie_word_embeddings" in caught.value.hint


def test_case_20_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    change(folder, "model.layers.1.mlp.up_proj.weight", None)
    with pytest.raises(ArtifactError, match=r"layers\.1\.mlp\.up_proj\.weight: missing, expected \[96, 48\]"):
        load_weights(folder, config, dtype=torch.float32)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.layers.0.mlp.bias", torch.ones(3), "unknown tensor"),
        ("model.layers.2.input_layernorm.weight", torch.ones(48), "unknown tensor"),
        ("model.norm.weight", torch.ones(47), r"shape \[47\], expected \[48\]"),
        ("model.norm.weight", torch.ones(48, dtype=torch.int64), "int64, expected one of float32"),
        ("model.norm.weight", torch.full((48,), float("nan")), "48 of 48 values are NaN"),
        (
            "model.embed_tokens.weight",
            torch.ones(320, 48).index_fill_(0, torch.tensor([7]), float("inf")),
            "48 of 15360",
        ),
    ],
)
def test_case_20_a_wrong_tensor_is_named(tmp_path: Path, name: str, tensor: torch.Tensor, message: str) -> None:
    folder, config = make(tmp_path)
    change(folder, name, tensor)
    with pytest.raises(ArtifactError, match=message) as caught:
        load_weights(folder, config, dtype=torch.float32)
    assert name in caught.value.what
    assert "model.safetensors" in caught.value.what


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_case_20_one_nan_anywhere_is_found(tmp_path: Path, place: int, dtype: torch.dtype) -> None:
    folder, config = make(tmp_path, dtype=dtype)
    tensor = torch.randn(48, 96).to(dtype)
    tensor.view(-1)[[0, 2000, 48 * 96 - 1][place]] = float("nan")
    change(folder, "model.layers.1.mlp.down_proj.weight", tensor)
    with pytest.raises(ArtifactError, match="1 of 4608 values"):
        load_weights(folder, config, dtype=torch.float32)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_case_20_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    folder, config = make(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"model\.safetensors: not a readable"):
        load_weights(folder, config, dtype=torch.float32)


def test_case_20_pickles_are_never_read(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ArtifactError, match="no weights") as caught:
        load_weights(folder, config, dtype=torch.float32)
    assert "pytorch_model.bin" in caught.value.hint


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/tmp/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "C:x.safetensors",
        "m.bin",
        5,
    ],
)
def test_case_20_an_index_cannot_point_outside_the_folder(tmp_path: Path, file: object) -> None:
    folder, config = make(tmp_path, num_shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match=r"model\.norm\.weight: .*expected the name"):
        load_weights(folder, config, dtype=torch.float32)


def test_case_20_shards_must_hold_what_the_index_says(tmp_path: Path) -> None:
    folder, config = make(tmp_path, num_shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    moved = {**index["weight_map"], "model.norm.weight": "model-00001-of-00002.safetensors"}
    path.write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(ArtifactError, match=r"model\.norm\.weight: "):
        load_weights(folder, config, dtype=torch.float32)
    path.write_text(json.dumps(index))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ArtifactError, match="model-00002-of-00002"):
        load_weights(folder, config, dtype=torch.float32)
    path.write_text(json.dumps({"weight_map": []}))
    with pytest.raises(ArtifactError, match="weight_map"):
        load_weights(folder, config, dtype=torch.float32)


def test_case_20_a_tensor_given_twice_is_refused(tmp_path: Path) -> None:
    folder, config = make(tmp_path)
    tensors = random_tensors(config)
    write_checkpoint(folder, tensors)
    change(folder, "norm.weight", torch.ones(48))
    with pytest.raises(ArtifactError, match="given twice"):
        load_weights(folder, config, dtype=torch.float32)
