"""The target against transformers and against the slow float64 reference."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jetspec_engine.embedded import attention_choice, layouts, linear
from jetspec_engine.embedded.reference import reference_forward
from jetspec_engine.embedded.reference_hybrid import hybrid_reference_forward
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.mask import ancestor_mask
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import HYBRIDS, TAPS, VARIANTS, random_tree, tiny_folder, tiny_target
from support.tiny_models import load_with_transformers, make_tiny_target

REGION = SlotRegion(start=30, capacity=300)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, dict[str, Any]] = {
    "llama tied": {"model_type": "llama"},
    "llama untied, biases, odd groups": {
        "model_type": "llama",
        "is_tied": False,
        "has_bias": True,
        "num_attention_heads": 6,
    },
    "llama, llama3 scaling": {"model_type": "llama", "rope_scaling": LLAMA3},
    "llama, linear scaling": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, no groups": {"model_type": "llama", "num_key_value_heads": 4},
    "mistral, window": {"model_type": "mistral", "sliding_window": 9},
    "qwen2, one head, window on some layers": {
        "model_type": "qwen2",
        "num_key_value_heads": 1,
        "sliding_window": 21,
        "num_layers": 4,
    },
    "qwen3 tied, biases": {"model_type": "qwen3", "has_bias": True},
    "qwen3 untied, window": {"model_type": "qwen3", "is_tied": False, "sliding_window": 33, "head_dim": 32},
}
ARITHMETICS = ("fast", "exact")


def load(folder: Path, dtype: torch.dtype = torch.float32, taps: tuple[int, ...] = TAPS) -> DecoderTarget:
    config = DecoderConfig.from_folder(folder)
    return DecoderTarget(config, load_weights(folder, config, dtype=dtype), num_slots=512, taps=taps)


@pytest.fixture(params=ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "exact":
        monkeypatch.setattr(attention_choice, "probe_scores", lambda *_: False)
        monkeypatch.setattr(attention_choice, "probe_sequential", lambda *_: False)
        monkeypatch.setattr(linear, "choose_layout", lambda *_: layouts.PLAIN)
    return str(request.param)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_states_equal_transformers(case: str, arithmetic: str, tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path / "target", with_tokenizer=False, seed=3, **CASES[case])
    ids = np.random.default_rng(0).integers(0, 320, 90)
    with torch.no_grad():
        theirs = load_with_transformers(folder)(torch.from_numpy(ids)[None], output_hidden_states=True)
    (ours,) = load(folder).verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(ids))])
    torch.testing.assert_close(ours.logits, theirs.logits[0], atol=1e-4, rtol=0)
    # Hugging Face numbers the embedding's output 0: the states after layer i are entry i + 1. Their last is normed.
    torch.testing.assert_close(ours.hidden[:, :48], theirs.hidden_states[1][0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", [*VARIANTS, *HYBRIDS])
def test_a_tree_equals_the_dense_reference(model_type: str, dtype: torch.dtype, arithmetic: str) -> None:
    made, folder = tiny_target(model_type, dtype), tiny_folder(model_type, dtype)
    config = DecoderConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=dtype)
    rng = random.Random(7)
    prefix = [rng.randrange(320) for _ in range(75)]
    tree, _ = random_tree(rng, [rng.randrange(320) for _ in range(12)], 40)
    made.verify([VerifyItem(region=REGION, length=0, tree=DraftTree.chain(prefix))])
    made.commit(REGION, 0, range(75))
    (ours,) = made.verify([VerifyItem(region=REGION, length=75, tree=tree)])
    positions = torch.from_numpy(np.concatenate((np.arange(75), 75 + tree.depths)))
    sees = torch.ones(len(positions), len(positions), dtype=torch.bool).tril()
    sees[75:, 75:] = torch.from_numpy(ancestor_mask(tree.parents))
    tokens = torch.from_numpy(np.concatenate((prefix, tree.tokens)))
    forward = reference_forward if config.is_dense else hybrid_reference_forward
    logits, states = forward(config, weights, tokens, positions, sees)
    hidden = torch.cat([states[tap] for tap in TAPS], -1)
    if dtype == torch.float32:
        torch.testing.assert_close(ours.logits.double(), logits[75:], atol=1e-4, rtol=0)
        torch.testing.assert_close(ours.hidden.double(), hidden[75:], atol=1e-4, rtol=0)
        return
    # In bfloat16 the error is a rounding of each state; a wrong position or mask is tens of times larger. Rounding
    # also sends a token to another expert now and then, and a gated norm of a small readout enlarges it.
    most = 0.02 if config.is_dense else 0.15
    assert (ours.logits.double() - logits[75:]).pow(2).mean().sqrt() < most * logits.std()


def test_the_reference_notices_a_wrong_position() -> None:
    folder = tiny_folder("llama", torch.float32)
    config = DecoderConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=torch.float32)
    ids, places = torch.arange(20), torch.arange(20)
    sees = torch.ones(20, 20, dtype=torch.bool).tril()
    right, _ = reference_forward(config, weights, ids, places, sees)
    moved = places.clone()
    moved[10] += 1
    wrong, _ = reference_forward(config, weights, ids, moved, sees)
    assert (right - wrong).abs().max() > 0.1
