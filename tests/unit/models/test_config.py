"""Reading config.json: what is understood, and that every bad value is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from support.tiny_models import tiny_config

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def write(folder: Path, values: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def base(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    return {**tiny_config(model_type), "vocab_size": 320, "max_position_embeddings": 512, **changes}


def read(folder: Path, values: dict[str, Any], generation: dict[str, Any] | None = None) -> DecoderConfig:
    return DecoderConfig.from_folder(write(folder, values, generation))


def test_a_llama_file_reads_completely(tmp_path: Path) -> None:
    config = read(tmp_path, base(attention_bias=True, tie_word_embeddings=True))
    assert config == DecoderConfig(
        family="llama",
        vocab_size=320,
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=512,
        has_qkv_bias=True,
        has_o_bias=True,
        has_qk_norm=False,
        is_embedding_tied=True,
        sliding_windows=(None, None),
        bos_token_id=1,
        eos_token_ids=(2,),
        model_type="llama",
    )


@pytest.mark.parametrize(
    ("model_type", "family", "biases", "has_qk_norm"),
    [
        ("llama", "llama", (False, False), False),
        ("mistral", "llama", (False, False), False),
        ("qwen2", "qwen2", (True, False), False),
        ("qwen3", "qwen3", (False, False), True),
    ],
)
def test_each_family_has_its_own_switches(
    tmp_path: Path, model_type: str, family: str, biases: tuple[bool, bool], has_qk_norm: bool
) -> None:
    config = read(tmp_path, base(model_type))
    assert (config.family, config.has_qkv_bias, config.has_o_bias) == (family, *biases)
    assert config.has_qk_norm is has_qk_norm


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("llama", {"sliding_window": 8}, (None, None)),
        ("mistral", {"sliding_window": 8}, (8, 8)),
        ("mistral", {"sliding_window": None}, (None, None)),
        ("qwen2", {"sliding_window": 8}, (None, None)),
        ("qwen2", {"sliding_window": 8, "layer_types": None, "max_window_layers": 0}, (None, None)),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": 1},
            (None, 8),
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            (8, None),
        ),
    ],
)
def test_sliding_windows_by_layer(
    tmp_path: Path, model_type: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read(tmp_path, base(model_type, **changes)).sliding_windows == windows


def test_mistral_without_the_key_has_the_published_window(tmp_path: Path) -> None:
    values = base("mistral")
    del values["sliding_window"]
    assert read(tmp_path, values).sliding_windows == (4096, 4096)


def test_both_rope_spellings_read_the_same(tmp_path: Path) -> None:
    older = base(rope_theta=5e5, rope_scaling={**LLAMA3_SCALING, "type": "llama3"})
    modern = base(rope_parameters={**LLAMA3_SCALING, "rope_theta": 5e5})
    del modern["rope_theta"]
    first, second = read(tmp_path, older), read(tmp_path, modern)
    assert first == second
    assert (first.rope_theta, first.rope_scaling) == (5e5, LLAMA3_SCALING)


def test_the_oldest_spelling_says_type(tmp_path: Path) -> None:
    config = read(tmp_path, base(rope_scaling={"type": "linear", "factor": 2}))
    assert config.rope_scaling == {"rope_type": "linear", "factor": 2.0}


def test_default_scaling_is_none_in_both_spellings(tmp_path: Path) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        assert read(tmp_path, base(**{key: {"rope_type": "default"}})).rope_scaling is None


def test_end_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    config = read(tmp_path, base(eos_token_id=2), {"eos_token_id": [5, 2, 7]})
    assert config.eos_token_ids == (5, 2, 7)
    assert read(tmp_path, base(eos_token_id=[9]), {}).eos_token_ids == (9,)
    assert read(tmp_path, base(eos_token_id=None), {}).eos_token_ids == ()


def test_missing_optional_keys_take_the_published_defaults(tmp_path: Path) -> None:
    values = base("llama")
    for key in ("head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "bos_token_id", "attention_bias"):
        del values[key]
    config = read(tmp_path, values)
    assert (config.head_dim, config.num_kv_heads, config.rope_theta) == (12, 4, 10000.0)
    assert (config.rms_norm_eps, config.bos_token_id, config.is_embedding_tied) == (1e-6, None, False)
    qwen3 = base("qwen3")
    del qwen3["head_dim"]
    assert read(tmp_path, qwen3).head_dim == 128


BAD_VALUES = [
    ("vocab_size", 0),
    ("vocab_size", "320"),
    ("vocab_size", True),
    ("hidden_size", None),
    ("hidden_size", -48),
    ("num_hidden_layers", 2.0),
    ("num_attention_heads", 0),
    ("num_key_value_heads", 3),
    ("num_key_value_heads", 8),
    ("head_dim", 15),
    ("intermediate_size", []),
    ("rms_norm_eps", -1.0),
    ("rms_norm_eps", 10**400),
    ("rms_norm_eps", float("inf")),
    ("rms_norm_eps", float("nan")),
    ("rope_theta", 0.0),
    ("rope_theta", "1e4"),
    ("rope_scaling", "linear"),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ("rope_scaling", {"rope_type": "linear"}),
    ("rope_scaling", {**LLAMA3_SCALING, "high_freq_factor": 1.0}),
    ("rope_parameters", {"full_attention": {"rope_type": "default"}}),
    ("rope_parameters", {"rope_theta": 5e5, "rope_type": "default"}),
    ("max_position_embeddings", 1),
    ("tie_word_embeddings", "yes"),
    ("bos_token_id", 320),
    ("eos_token_id", 320),
    ("eos_token_id", [2, -1]),
    ("eos_token_id", [2, None]),
    ("hidden_act", "gelu"),
    ("mlp_bias", True),
    ("partial_rotary_factor", 0.5),
    ("quantization_config", {"quant_method": "fp8"}),
    ("architectures", ["LlamaForSequenceClassification"]),
    ("architectures", "LlamaForCausalLM"),
]


def test_a_key_given_twice_is_refused_since_readers_differ_in_which_one_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(base())[:-1] + ', "rope_theta": 5.0}')
    with pytest.raises(ArtifactError, match=r"config\.json: key 'rope_theta' is given twice"):
        DecoderConfig.from_folder(tmp_path)


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_with_file_key_value_and_expectation(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ArtifactError) as caught:
        read(tmp_path, base(**{key: value}))
    message = caught.value.what
    inner = next(iter(value)) if isinstance(value, dict) and key.startswith("rope") else None
    assert "config.json" in message
    assert key in message or (inner is not None and inner in message)
    assert "expected" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"use_sliding_window": 1}, "use_sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 0, "layer_types": None}, "sliding_window"),
    ],
)
def test_bad_windows_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ArtifactError, match=named):
        read(tmp_path, base("qwen3", **changes))


@pytest.mark.parametrize("changes", [{"head_dim": None}, {}])
def test_heads_that_do_not_divide_the_hidden_size_need_a_head_dim(tmp_path: Path, changes: dict[str, Any]) -> None:
    values = {key: value for key, value in base(hidden_size=50).items() if key != "head_dim"} | changes
    with pytest.raises(ArtifactError, match="hidden_size: 50, expected a multiple of num_attention_heads"):
        read(tmp_path, values)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "mamba2", "gpt2", None, 7])
def test_unsupported_architectures_are_refused_with_the_supported_ones(tmp_path: Path, model_type: object) -> None:
    with pytest.raises(ArtifactError, match="llama, mistral, qwen2, qwen3") as caught:
        read(tmp_path, {"model_type": model_type})
    assert "model_type" in caught.value.what


def test_a_draft_head_given_as_a_target_is_recognised(tmp_path: Path) -> None:
    values = base("qwen3", architectures=["DFlashDraftModel"], dflash_config={})
    with pytest.raises(ArtifactError, match="architectures") as caught:
        read(tmp_path, values)
    assert "draft head" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe{}", b'"text"', b"[" * 100_000])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"config\.json"):
        DecoderConfig.from_folder(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"nowhere.*config\.json"):
        DecoderConfig.from_folder(tmp_path / "nowhere")


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(base()).encode())
    assert DecoderConfig.from_folder(tmp_path).vocab_size == 320
