"""Configurations with experts and recurrent layers: what is understood, and that every bad value is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.random_names import RANDOM_FAMILIES
from jetspec_engine.models.random_target import ARCHITECTURES, COMMON


def values_of(family: str, **changes: Any) -> dict[str, Any]:
    model_type, architecture, own = ARCHITECTURES[family]
    return {"model_type": model_type, "architectures": [architecture], **COMMON, **own, **changes}


def read(folder: Path, values: dict[str, Any]) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(values))
    return DecoderConfig.from_folder(folder)


def test_the_families_that_can_be_made_are_those_that_are_named() -> None:
    assert tuple(ARCHITECTURES) == RANDOM_FAMILIES


def test_R13_a_hybrid_file_reads_completely(tmp_path: Path) -> None:
    config = read(tmp_path, values_of("qwen3-next", mlp_only_layers=[1], linear_num_value_heads=6))
    assert config.attention_layers == (2,)
    assert config.rotary_dim == 8
    assert config.has_attention_gate
    assert config.is_norm_zero_centred
    assert config.delta is not None
    assert config.delta.layers == (True, True, False, True)
    assert (config.delta.key_size, config.delta.value_size, config.delta.conv_channels) == (32, 96, 160)
    assert config.experts is not None
    assert config.experts.layers == (True, False, True, True)
    assert (config.experts.num_experts, config.experts.num_chosen, config.experts.shared_size) == (8, 3, 32)


def test_R13_kinds_of_layers_follow_the_interval_when_the_file_lists_none(tmp_path: Path) -> None:
    config = read(tmp_path, values_of("qwen3.5", layer_types=None, full_attention_interval=2, num_hidden_layers=5))
    assert config.attention_layers == (1, 3)


def test_R13_the_text_part_of_a_model_that_sees_pictures_is_read(tmp_path: Path) -> None:
    text = values_of("qwen3.5-moe", tie_word_embeddings=True)
    del text["architectures"]
    outer = {
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": False,
    }
    config = read(tmp_path, outer)
    assert config.model_type == "qwen3_5_moe_text"
    assert not config.is_embedding_tied
    with pytest.raises(ArtifactError, match="text_config: missing"):
        read(tmp_path, {key: value for key, value in outer.items() if key != "text_config"})


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen3-moe", {"num_experts": 0}, "num_experts: 0, expected an integer"),
        ("qwen3-moe", {"num_experts_per_tok": 9}, r"num_experts_per_tok: 9, expected an integer in \[1, 8\]"),
        ("qwen3-moe", {"moe_intermediate_size": None}, "moe_intermediate_size: None"),
        ("qwen3-moe", {"mlp_only_layers": "all"}, "mlp_only_layers: 'all'"),
        ("qwen3-moe", {"decoder_sparse_step": 0}, "decoder_sparse_step: 0"),
        ("qwen3-moe", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor: 0.5, expected 1.0"),
        ("qwen3-next", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size: None"),
        ("qwen3-next", {"linear_num_value_heads": 3}, "linear_num_value_heads: 3, expected a multiple"),
        ("qwen3-next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: 1"),
        ("qwen3-next", {"layer_types": ["linear_attention"] * 4}, "layer_types: .*one full_attention at least"),
        ("qwen3-next", {"layer_types": ["full_attention"] * 3}, "layer_types: .*4 entries"),
        ("qwen3-next", {"layer_types": None, "num_hidden_layers": 3}, "num_hidden_layers: 3, expected at least 4"),
        ("qwen3.5", {"partial_rotary_factor": 0.1}, "partial_rotary_factor: 0.1, expected an even number"),
        ("qwen3.5", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5, expected 0.25"),
        ("qwen3.5", {"intermediate_size": None}, "intermediate_size: None"),
    ],
)
def test_case_20_bad_values_are_named(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=message):
        read(tmp_path, values_of(family, **changes))
