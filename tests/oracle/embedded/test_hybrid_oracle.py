"""Targets with recurrent layers and experts against transformers: prompts, single tokens, and every path of a tree."""

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jetspec_engine.embedded import attention_choice, layouts, linear
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.random_target import write_random_target
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import HYBRIDS, random_tree, tiny_folder
from support.tiny_models import load_with_transformers

REGION = SlotRegion(start=30, capacity=300)
VOCAB_SIZE = 320
IDS = np.random.default_rng(0).integers(0, VOCAB_SIZE, 90)
# Keys of a configuration that change what the layers do.
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3-moe", {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": []}),
    ("qwen3-moe", {"use_sliding_window": True, "sliding_window": 9, "attention_bias": True}),
    ("qwen3-next", {"linear_num_key_heads": 4, "attention_bias": True, "norm_topk_prob": False}),
    ("qwen3-next", {"mlp_only_layers": [0], "decoder_sparse_step": 2, "linear_conv_kernel_dim": 2}),
    ("qwen3.5", {"linear_value_head_dim": 8, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    ("qwen3.5-moe", {"layer_types": None, "full_attention_interval": 2, "linear_key_head_dim": 12}),
]


def load(folder: Path) -> DecoderTarget:
    config = DecoderConfig.from_folder(folder)
    return DecoderTarget(config, load_weights(folder, config, dtype=torch.float32), num_slots=512, taps=(0, 1))


@lru_cache(maxsize=8)
def theirs(folder: Path) -> Any:
    return load_with_transformers(folder)


def logits_of(model: Any, ids: Any) -> torch.Tensor:
    with torch.no_grad():
        made: torch.Tensor = model(torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]).logits[0]
    return made


@pytest.fixture(params=("fast", "exact"))
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "exact":
        monkeypatch.setattr(attention_choice, "probe_scores", lambda *_: False)
        monkeypatch.setattr(attention_choice, "probe_sequential", lambda *_: False)
        monkeypatch.setattr(linear, "choose_layout", lambda *_: layouts.PLAIN)
    return str(request.param)


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("family", HYBRIDS)
def test_R13_logits_and_states_of_a_prompt_equal_transformers(family: str) -> None:
    folder = tiny_folder(family, torch.float32)
    with torch.no_grad():
        wanted = theirs(folder)(torch.from_numpy(IDS)[None], output_hidden_states=True)
    (ours,) = load(folder).verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(IDS))])
    torch.testing.assert_close(ours.logits, wanted.logits[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.hidden[:, :64], wanted.hidden_states[1][0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", HYBRIDS)
def test_R13_logits_token_by_token_equal_transformers(family: str) -> None:
    folder = tiny_folder(family, torch.float32)
    ours, model, cache = load(folder), theirs(folder), None
    for length, token in enumerate(IDS[:40]):
        with torch.no_grad():
            wanted = model(torch.tensor([[int(token)]]), past_key_values=cache, use_cache=True)
        cache = wanted.past_key_values
        (own,) = ours.verify([VerifyItem(region=REGION, length=length, tree=DraftTree.root_only(token))])
        ours.commit(REGION, length, [0])
        torch.testing.assert_close(own.logits, wanted.logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", HYBRIDS)
def test_R13_every_path_of_a_tree_equals_transformers_on_that_text(family: str) -> None:
    folder, rng = tiny_folder(family, torch.float32), random.Random(5)
    ours = load(folder)
    prefix = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
    tree, _ = random_tree(rng, [rng.randrange(VOCAB_SIZE) for _ in range(6)], 14)
    ours.verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(prefix))])
    ours.commit(REGION, 0, range(20))
    (made,) = ours.verify([VerifyItem(region=REGION, length=20, tree=tree)])
    for leaf in set(range(tree.num_nodes)) - set(tree.parents.tolist()):
        path = [leaf]
        while tree.parents[path[0]] >= 0:
            path.insert(0, int(tree.parents[path[0]]))
        wanted = logits_of(theirs(folder), [*prefix, *tree.tokens[path]])[20:]
        torch.testing.assert_close(made.logits[path], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "changes"), CHANGES)
def test_R13_every_switch_of_a_configuration_means_what_transformers_makes_of_it(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    write_random_target(tmp_path, family, vocab_size=VOCAB_SIZE, **changes)
    (ours,) = load(tmp_path).verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(IDS[:40]))])
    wanted = logits_of(load_with_transformers(tmp_path), IDS[:40])
    torch.testing.assert_close(ours.logits, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.5-moe"])
def test_R13_the_text_part_of_a_model_that_sees_pictures_loads(family: str, tmp_path: Path) -> None:
    """As published: the configuration in text_config, weights one level deeper, experts in one tensor a layer."""
    from safetensors.torch import load_file, save_file

    source = tiny_folder(family, torch.float32)
    (wanted,) = load(source).verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(IDS[:20]))])
    text = json.loads((source / "config.json").read_text())
    kind = {"qwen3.5": "Qwen3_5", "qwen3.5-moe": "Qwen3_5Moe"}[family]
    outer = {
        "architectures": [f"{kind}ForConditionalGeneration"],
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "tie_word_embeddings": False,
        "vision_config": {"depth": 2},
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    for layer in range(4 if family == "qwen3.5-moe" else 0):
        prefix = f"model.language_model.layers.{layer}.mlp.experts"
        parts = {
            part: torch.stack([tensors.pop(f"{prefix}.{expert}.{part}_proj.weight") for expert in range(8)])
            for part in ("gate", "up", "down")
        }
        tensors[f"{prefix}.gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), 1)
        tensors[f"{prefix}.down_proj"] = parts["down"]
    tensors["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(3, 3)
    tensors["mtp.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (ours,) = load(tmp_path).verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(IDS[:20]))])
    assert torch.equal(ours.logits, wanted.logits)


@pytest.mark.parametrize("family", HYBRIDS)
def test_R13_checkpoints_of_transformers_load_with_equal_tensors(family: str, tmp_path: Path) -> None:
    source = tiny_folder(family, torch.float32)
    theirs(source).save_pretrained(tmp_path)
    config, again = DecoderConfig.from_folder(source), DecoderConfig.from_folder(tmp_path)
    assert again == config
    wanted = load_weights(source, config, dtype=torch.float32)
    loaded = load_weights(tmp_path, again, dtype=torch.float32)
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())
