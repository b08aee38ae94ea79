"""Every check of a head's configuration: one line that names file, key, value and expectation."""

import itertools
from typing import Any

import pytest

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.errors import ArtifactError
from support.tiny_heads import head_document


def read(**changes: Any) -> HeadConfig:
    return HeadConfig.from_mapping(head_document(**changes), where="head/config.json")


def refusal(**changes: Any) -> str:
    with pytest.raises(ArtifactError) as caught:
        read(**changes)
    assert "\n" not in caught.value.what
    assert caught.value.what.startswith("head/config.json: ")
    return caught.value.what.removeprefix("head/config.json: ")


def test_a_sound_file_is_read_as_it_says() -> None:
    config = read()
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (2, 16, 4, 2)
    assert (config.block_size, config.depth, config.mask_token_id) == (5, 4, 3)
    assert (config.target_layer_ids, config.num_target_layers, config.tapped_size) == ((0, 2), 4, 32)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.is_causal
    assert not config.is_shifted


CASE_20 = [
    ({"block_size": None}, "block_size: missing, expected an integer in 2..256"),
    ({"block_size": 0}, "block_size: 0, expected an integer in 2..256"),
    ({"block_size": 1}, "block_size: 1, expected an integer in 2..256"),
    ({"block_size": "16"}, "block_size: '16', expected an integer in 2..256"),
    ({"block_size": 16.0}, "block_size: 16.0, expected an integer in 2..256"),
    ({"block_size": True}, "block_size: True, expected an integer in 2..256"),
    ({"block_size": 257}, "block_size: 257, expected an integer in 2..256"),
    (
        {"block_size": 32, "dflash_config__block_size": 16},
        "block_size: 32, expected the same as dflash_config.block_size: 16",
    ),
    ({"dflash_config__mask_token_id": None}, "mask_token_id: missing, expected an integer in 0..49"),
    ({"dflash_config__mask_token_id": -1}, "dflash_config.mask_token_id: -1, expected an integer in 0..49"),
    ({"dflash_config__mask_token_id": 50}, "dflash_config.mask_token_id: 50, expected an integer in 0..49"),
    ({"dflash_config__target_layer_ids": [0, 4]}, "dflash_config.target_layer_ids: [0, 4], expected integers in 0..3"),
    (
        {"dflash_config__target_layer_ids": [-1, 2]},
        "dflash_config.target_layer_ids: [-1, 2], expected integers in 0..3",
    ),
    (
        {"dflash_config__target_layer_ids": [1, 1]},
        "target_layer_ids: [1, 1], expected distinct layers in 0..3, at least one",
    ),
    ({"dflash_config__target_layer_ids": []}, "target_layer_ids: [], expected distinct layers in 0..3, at least one"),
    ({"dflash_config__target_layer_ids": "all"}, "dflash_config.target_layer_ids: 'all', expected integers in 0..3"),
    ({"dflash_config": "yes"}, "dflash_config: 'yes', expected a JSON object"),
    ({"num_target_layers": 0}, "num_target_layers: 0, expected an integer in 1..10000"),
    ({"num_target_layers": None}, "num_target_layers: missing, expected an integer in 1..10000"),
    ({"hidden_size": 0}, "hidden_size: 0, expected an integer in 1..1048576"),
    ({"vocab_size": None}, "vocab_size: missing, expected an integer in 2..2147483647"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: 3, expected a divisor of num_attention_heads 4"),
    ({"num_key_value_heads": 8}, "num_key_value_heads: 8, expected an integer in 1..4"),
    ({"head_dim": 7}, "head_dim: 7, expected an even number (rotary embedding)"),
    ({"rms_norm_eps": 0}, "rms_norm_eps: 0, expected a finite number above 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan, expected a finite number above 0"),
    ({"rope_theta": None}, "rope_theta: missing, expected a finite number above 0"),
    (
        {"rope_parameters": {"rope_theta": 5.0}},
        "rope_theta: 10000.0, expected the same as rope_parameters.rope_theta: 5.0",
    ),
    ({"max_position_embeddings": 1}, "max_position_embeddings: 1, expected an integer in 2..2147483647"),
    ({"bos_token_id": 50}, "bos_token_id: 50, expected integers in 0..49"),
    ({"eos_token_id": [2, -1]}, "eos_token_id: [2, -1], expected integers in 0..49"),
    ({"layer_types": ["full_attention"]}, "layer_types: ['full_attention'], expected a list of 2 names, one a layer"),
    (
        {"layer_types": ["full_attention", "mamba"]},
        "layer_types: 'mamba', expected full_attention or sliding_attention",
    ),
    ({"layer_types": ["sliding_attention"] * 2}, "sliding_window: missing, expected an integer in 1..2147483647"),
    ({"use_sliding_window": True}, "layer_types: missing, expected 2 names (sliding window in use)"),
]


@pytest.mark.parametrize(("changes", "expected"), CASE_20, ids=[expected[:40] for _, expected in CASE_20])
def test_case_20_bad_values_are_refused_in_one_line(changes: dict[str, Any], expected: str) -> None:
    assert refusal(**changes) == expected


def test_case_20_a_block_size_of_32_is_a_head_of_depth_31() -> None:
    assert read(block_size=32).depth == 31


@pytest.mark.parametrize("given", [[], "text", 3, None])
def test_case_20_a_document_that_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(ArtifactError, match="expected a JSON object"):
        HeadConfig.from_mapping(given)


KEYS = ("dflash_config__causal_head", "dflash_config__causal", "is_causal")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [True, False])
def test_R23_each_causality_key_alone_decides(key: str, value: bool) -> None:
    assert read(**{"dflash_config__causal_head": None, key: value}).is_causal is value


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(KEYS, 2)))
def test_R23_contradictory_causality_keys_are_refused(one: str, other: str) -> None:
    message = refusal(**{"dflash_config__causal_head": None, one: True, other: False})
    assert "expected the same as" in message
    assert "True" in message
    assert "False" in message


def test_R23_agreeing_causality_keys_are_accepted() -> None:
    assert read(dflash_config__causal=True, is_causal=True).is_causal


def test_R23_without_a_causality_key_the_head_is_bidirectional_as_the_first_public_heads_are() -> None:
    assert not read(dflash_config__causal_head=None).is_causal


@pytest.mark.parametrize("value", [1, 0, "true", [True]])
def test_R23_a_causality_value_that_is_no_truth_value_is_refused(value: Any) -> None:
    assert refusal(is_causal=value) == f"is_causal: {value!r}, expected true or false"


def test_R23_what_is_written_has_all_three_causality_keys() -> None:
    for value in (True, False):
        written = read(dflash_config__causal_head=value).to_mapping()
        found = (written["is_causal"], written["dflash_config"]["causal"], written["dflash_config"]["causal_head"])
        assert found == (value, value, value)


@pytest.mark.parametrize(
    "changes",
    [
        {"dflash_config__adapter_dim": 64},
        {"dflash_config__thresholds": [0.1, 0.2]},
        {"jetspec_plus": {"rank": 8}},
        {"architectures": ["JetSpecPlusDraftModel"]},
        {"dflash_config__target_hidden_size": 32},
    ],
)
def test_jetspec_plus_plus_heads_are_recognised_and_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError) as caught:
        read(**changes)
    assert "JetSpec++" in caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0}},
        {"quantization_config": {"bits": 4}},
        {"draft_vocab_size": 32},
        {"dflash_config__fc_layernorm": True},
        {"dflash_config__markov_rank": 4},
    ],
)
def test_what_would_be_run_otherwise_than_trained_is_refused(changes: dict[str, Any]) -> None:
    assert "expected" in refusal(**changes)


def test_settings_that_are_off_do_not_stand_in_the_way() -> None:
    read(attention_bias=False, rope_scaling={"rope_type": "default"}, dflash_config__markov_rank=0, draft_vocab_size=50)
    read(dflash_config__target_hidden_size=16, dflash_config__adapter_dim=0)


def test_layers_are_chosen_by_the_public_rule_when_the_file_has_none() -> None:
    config = read(dflash_config__target_layer_ids=None, num_target_layers=36, num_hidden_layers=5)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)


def test_layers_that_the_rule_cannot_choose_are_refused() -> None:
    assert "expected distinct layers" in refusal(dflash_config__target_layer_ids=None, num_target_layers=2)


def test_the_rotary_base_may_stand_in_either_place() -> None:
    assert read(rope_theta=None, rope_parameters={"rope_theta": 5.0}).rope_theta == 5.0
    assert read(rope_parameters={"rope_theta": 10000.0}).rope_theta == 10000.0


def test_windows_follow_the_layer_types_unless_switched_off() -> None:
    types = ["sliding_attention", "full_attention"]
    assert read(layer_types=types, sliding_window=7).sliding_windows == (7, None)
    off = read(layer_types=types, sliding_window=7, use_sliding_window=False)
    assert [off.window_of(layer) for layer in range(2)] == [None, None]


def test_a_nested_jetspec_block_is_read_too() -> None:
    config = read(dflash_config=None, jetspec_config={"mask_token_id": 4, "target_layer_ids": [1], "causal_head": True})
    assert (config.mask_token_id, config.target_layer_ids, config.is_causal) == (4, (1,), True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eos_token_id": [2, 5]},
        {"bos_token_id": None, "eos_token_id": None},
        {"dflash_config__sample_from_anchor": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7},
        {"pad_token_id": 2, "training": {"steps": 3}},
    ],
)
def test_what_is_written_reads_back_the_same(changes: dict[str, Any]) -> None:
    config = read(**changes)
    assert HeadConfig.from_mapping(config.to_mapping()) == config


def test_keys_without_meaning_here_travel_on() -> None:
    assert read(training={"steps": 3}).extra == {"training": {"steps": 3}}
