"""Configurations and tensors as transformers itself writes and reads them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.gguf_convert import convert
from jetspec_engine.models.weights import load_weights
from support.tiny_gguf import tiny_gguf_config, write_tiny_gguf
from support.tiny_models import load_with_transformers, make_tiny_target

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": [2, 5],
    "bos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 2e4, "factor": 2.0}
WINDOWED = {"use_sliding_window": True, "sliding_window": 16}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "rope_parameters": LLAMA3}),
    ("llama", {"head_dim": 20, "rope_parameters": LINEAR}),
    ("mistral", {"sliding_window": 16}),
    ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2", {**WINDOWED, "max_window_layers": 2}),
    ("qwen3", {"head_dim": 24}),
    ("qwen3", {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_bias": True}),
]


def saved_by_transformers(folder: Path, model_type: str, options: dict[str, Any], *, max_shard_size: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SHAPE, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


@pytest.mark.parametrize("max_shard_size", ["1GB", "40KB"])
@pytest.mark.parametrize(("model_type", "options"), CASES)
def test_checkpoints_of_transformers_load_with_equal_tensors(
    tmp_path: Path, model_type: str, options: dict[str, Any], max_shard_size: str
) -> None:
    model = saved_by_transformers(tmp_path, model_type, options, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() is (max_shard_size == "40KB")
    config = DecoderConfig.from_folder(tmp_path)
    loaded = load_weights(tmp_path, config, dtype=torch.float32)
    theirs = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    if config.is_embedding_tied:
        del theirs["lm_head.weight"]
    assert loaded.keys() == theirs.keys()
    assert all(torch.equal(loaded[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("model_type", "options"), CASES)
def test_configurations_mean_what_transformers_makes_of_them(
    tmp_path: Path, model_type: str, options: dict[str, Any]
) -> None:
    model = saved_by_transformers(tmp_path, model_type, options, max_shard_size="1GB")
    ours, theirs = DecoderConfig.from_folder(tmp_path), model.config
    assert ours.eos_token_ids == (2, 5)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    kind = theirs.rope_parameters["rope_type"]
    assert (ours.rope_scaling or {"rope_type": "default"})["rope_type"] == kind
    for key, value in (ours.rope_scaling or {}).items():
        assert theirs.rope_parameters[key] == value
    attention = [layer.self_attn for layer in model.model.layers]
    assert all(part.head_dim == ours.head_dim for part in attention)
    assert all((part.q_proj.bias is not None) is ours.has_qkv_bias for part in attention)
    assert all((part.o_proj.bias is not None) is ours.has_o_bias for part in attention)
    assert all(hasattr(part, "q_norm") is ours.has_qk_norm for part in attention)
    if model_type == "mistral":
        assert ours.sliding_windows == (theirs.sliding_window,) * 4
    else:
        assert ours.sliding_windows == tuple(getattr(part, "sliding_window", None) for part in attention)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_tiny_targets_are_what_transformers_expects(tmp_path: Path, model_type: str) -> None:
    is_tied = model_type in ("llama", "qwen3")
    make_tiny_target(tmp_path, model_type=model_type, is_tied=is_tied, has_bias=True, sliding_window=8, num_shards=2)
    model = load_with_transformers(tmp_path)
    loaded = load_weights(tmp_path, DecoderConfig.from_folder(tmp_path), dtype=torch.float32)
    theirs = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(theirs[name], tensor) for name, tensor in loaded.items())
    assert theirs.keys() - loaded.keys() == ({"lm_head.weight"} if is_tied else set())


def test_the_tiny_target_writes_varied_text(tmp_path: Path) -> None:
    """What other tests rely on: greedy text that does not fall into a loop at once, and no exact ties."""
    model = load_with_transformers(make_tiny_target(tmp_path))
    with torch.no_grad():
        ids = model.generate(torch.tensor([[10, 20, 30]]), max_new_tokens=64, do_sample=False, eos_token_id=None)
        top = model(ids).logits[0].topk(2).values
    assert len(set(ids[0, 3:].tolist())) > 20
    assert (top[:, 0] - top[:, 1]).min() > 1e-4


def test_conversion_from_gguf_equals_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF files through it")
    from transformers import AutoModelForCausalLM

    write_tiny_gguf(tmp_path / "tiny.gguf", tiny_gguf_config(tmp_path / "source", is_tied=False))
    (tmp_path / "made").mkdir()
    convert(tmp_path / "tiny.gguf", tmp_path / "made", lambda _: None)
    ours = load_weights(tmp_path / "made", DecoderConfig.from_folder(tmp_path / "made"), dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    theirs = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].to(torch.bfloat16)) for name in ours)
