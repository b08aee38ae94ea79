"""R29 on SGLang's own command line: a head beside a target it was not made for is refused, hybrid targets included."""

import json

import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ArtifactError
from jetspec_engine.sglang_backend.models import check_pair_folders, find_models, read_target_facts
from support.sglang_configs import HEAD

TEXT = {
    "model_type": "qwen3_5_moe_text", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# As published: the text model inside, its special tokens beside it.
WHOLE = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": TEXT,
    "vision_config": {"hidden_size": 999},
}  # fmt: skip


def write(folder, config, **files):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("target", [TEXT, WHOLE], ids=["text", "whole"])
def test_R29_a_head_that_belongs_to_a_hybrid_target_is_taken(tmp_path, target):
    head = {**HEAD, "bos_token_id": 1, "eos_token_id": [2]}
    check_pair_folders(write(tmp_path / "t", target), write(tmp_path / "h", head))


@pytest.mark.parametrize(
    ("key", "value"),
    [("bos_token_id", 7), ("eos_token_id", 9), ("vocab_size", 300), ("hidden_size", 128), ("num_target_layers", 5)],
)
@pytest.mark.parametrize("target", [TEXT, WHOLE], ids=["text", "whole"])
def test_R29_a_sibling_models_head_is_refused_by_its_key(tmp_path, target, key, value):
    head = write(tmp_path / "h", {**HEAD, "bos_token_id": 1, "eos_token_id": 2, key: value})
    with pytest.raises(ArtifactError) as caught:
        check_pair_folders(write(tmp_path / "t", target), head)
    assert key in caught.value.what
    assert str(value) in caught.value.what


def test_R29_a_mask_id_beyond_the_targets_vocabulary_is_refused(tmp_path):
    head = {**HEAD, "dflash_config": {**HEAD["dflash_config"], "mask_token_id": 256}}
    with pytest.raises(ArtifactError, match="mask_token_id"):
        check_pair_folders(write(tmp_path / "t", WHOLE), write(tmp_path / "h", head))


def test_end_tokens_of_a_generation_file_count(tmp_path):
    target = write(tmp_path / "t", TEXT, generation_config={"eos_token_id": [5, 2]})
    assert read_target_facts(tmp_path / "t").eos_token_ids == (5, 2)
    check_pair_folders(target, write(tmp_path / "h", {**HEAD, "bos_token_id": 1, "eos_token_id": 5}))


def test_what_is_no_folder_is_left_to_sglang(tmp_path):
    head = write(tmp_path / "h", HEAD)
    check_pair_folders("someone/a-target", head)
    check_pair_folders(str(tmp_path), "someone/a-head")
    check_pair_folders(write(tmp_path / "t", {"n_embd": 768}), head)


def found(target, head):
    return find_models(ServeConfig(engine="sglang", target=target, head=head), lambda progress: None)


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "mellum", "sliding_window": 24, "architectures": ["MellumForCausalLM"]},
        {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}},
    ],
    ids=["another-family", "quantised"],
)
def test_the_launcher_takes_targets_that_only_sglang_runs(tmp_path, more):
    target, head = write(tmp_path / "t", {**TEXT, **more}), write(tmp_path / "h", {**HEAD, "eos_token_id": 2})
    assert [str(folder) for folder in found(target, head)] == [target, head]


def test_R29_the_launcher_refuses_a_head_for_another_target_and_as_one(tmp_path):
    target, head = write(tmp_path / "t", TEXT), write(tmp_path / "h", {**HEAD, "hidden_size": 128})
    with pytest.raises(ArtifactError, match="hidden_size"):
        found(target, head)
    with pytest.raises(ArtifactError) as caught:
        found(write(tmp_path / "h2", HEAD), write(tmp_path / "h3", HEAD))
    assert "draft head" in caught.value.hint
    with pytest.raises(ArtifactError, match="vocab_size"):
        found(write(tmp_path / "t2", {"n_embd": 768}), write(tmp_path / "h4", HEAD))
