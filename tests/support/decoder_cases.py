"""Tiny decoder targets, random trees around a known text, and the one check that matters: bits do not change.

target = tiny_target("llama", torch.float32)
text = plain_text(target, seed=0, count=150)           # decoded one token at a time, with logits and states
assert_invariant(target, [text], random.Random(1))     # cut into random rounds with random siblings
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.random_names import RANDOM_FAMILIES
from jetspec_engine.models.random_target import write_random_target
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import SlotRegion, VerifyItem, VerifyResult
from jetspec_engine.tree.record import DraftTree
from support.tiny_models import TINY_VOCAB_SIZE, make_tiny_target

NUM_SLOTS = 1024
CAPACITY = 300
PLAIN_REGION = SlotRegion(start=700, capacity=CAPACITY)
TAPS = (0, 1)
# Families and what is peculiar in each; the windows cross a block of positions, or are shorter than most rounds.
VARIANTS = {
    "llama": {"has_bias": True, "num_attention_heads": 6, "num_key_value_heads": 2},
    "mistral": {"sliding_window": 70, "is_tied": False, "num_attention_heads": 3, "num_key_value_heads": 3},
    "qwen2": {"sliding_window": 5, "num_attention_heads": 4, "num_key_value_heads": 1},
    "qwen3": {"sliding_window": 40, "is_tied": False, "head_dim": 32},
}
# The families beyond the dense ones, as the package itself makes them.
HYBRIDS = RANDOM_FAMILIES
DTYPES = (torch.float32, torch.bfloat16)
RECURRENT = tuple(family for family in HYBRIDS if family != "qwen3-moe")


@lru_cache(maxsize=32)
def tiny_folder(model_type: str, dtype: torch.dtype) -> Path:
    """Write a variant once in a process and return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="jetspec-tiny-"))
    if model_type in HYBRIDS:
        write_random_target(folder, model_type, dtype=dtype, vocab_size=TINY_VOCAB_SIZE)
        return folder
    return make_tiny_target(folder, model_type=model_type, dtype=dtype, with_tokenizer=False, **VARIANTS[model_type])


def tiny_target(model_type: str, dtype: torch.dtype, *, device: str = "cpu", **options: object) -> DecoderTarget:
    """Load a variant afresh (the caller may break it)."""
    folder = tiny_folder(model_type, dtype)
    config = DecoderConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=dtype, device=device)
    return DecoderTarget(config, weights, num_slots=NUM_SLOTS, taps=TAPS, **options)


@dataclass(frozen=True)
class PlainText:
    """A text and what plain decoding computes at each of its positions: logits (T, V), tapped states (T, taps * E)."""

    ids: np.ndarray
    logits: Tensor
    hidden: Tensor


def plain_text(target: DecoderTarget, *, seed: int, count: int) -> PlainText:
    """Feed random ids one at a time."""
    ids = np.random.default_rng(seed).integers(0, target.vocab_size, count)
    results = []
    for length, token in enumerate(ids):
        (result,) = target.verify([VerifyItem(region=PLAIN_REGION, length=length, tree=DraftTree.root_only(token))])
        target.commit(PLAIN_REGION, length, [0])
        results.append(result)
    return PlainText(
        ids, torch.cat([result.logits for result in results]), torch.cat([result.hidden for result in results])
    )


def random_tree(rng: random.Random, true_ids: Sequence[int], num_others: int) -> tuple[DraftTree, list[int]]:
    """Return a tree that holds the ids as a path from the root, and the path's nodes.

    The other nodes hang anywhere, below the path or each other, before or after the path's nodes among the siblings
    and in memory: only that parents come first is kept.
    """
    parents, tokens, path = [-1], [int(true_ids[0])], [0]
    left = [True] * (len(true_ids) - 1) + [False] * num_others
    rng.shuffle(left)
    for is_true in left:
        node = len(tokens)
        if is_true:
            parents.append(path[-1])
            tokens.append(int(true_ids[len(path)]))
            path.append(node)
        else:
            parents.append(rng.randrange(node))
            tokens.append(rng.randrange(TINY_VOCAB_SIZE))
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    arrays = (np.array(values, dtype=np.int64) for values in (tokens, parents, depths))
    return DraftTree(*arrays, np.zeros(len(tokens), np.float32)), path


def assert_same_bits(result: VerifyResult, path: Sequence[int], text: PlainText, length: int) -> None:
    """Compare a round's true path with plain decoding of the same positions."""
    places = slice(length, length + len(path))
    rows = list(path)
    wrong = (result.logits[rows] != text.logits[places]).any(-1) | (result.hidden[rows] != text.hidden[places]).any(-1)
    assert not wrong.any(), f"positions {(wrong.nonzero().flatten() + length).tolist()} of a round at {length}"


def assert_invariant(
    target: DecoderTarget, texts: Sequence[PlainText], rng: random.Random, *, max_path: int = 20, max_others: int = 30
) -> None:
    """Decode the texts side by side in random rounds of random trees; every bit must be plain decoding's.

    Raises:
        AssertionError: naming the positions that differ.
    """
    lengths = [0] * len(texts)
    places = rng.sample(range(len(texts) + 1), len(texts))
    regions = [SlotRegion(start=place * 150 + rng.randrange(20), capacity=130) for place in places]
    while any(length < len(text.ids) for length, text in zip(lengths, texts, strict=True)):
        running = [i for i, text in enumerate(texts) if lengths[i] < len(text.ids)]
        rng.shuffle(running)
        items, paths = [], []
        for i in running:
            most = len(texts[i].ids) - lengths[i]
            count = min(rng.choice((1, 1, 2, 3, 5, 8, max_path)), most)
            room = regions[i].capacity - lengths[i] - count
            others = min(rng.choice((0, 0, 1, 4, max_others)), room)
            tree, path = random_tree(rng, texts[i].ids[lengths[i] : lengths[i] + count], others)
            items.append(VerifyItem(region=regions[i], length=lengths[i], tree=tree))
            paths.append(path)
        for i, path, result in zip(running, paths, target.verify(items), strict=True):
            assert_same_bits(result, path, texts[i], lengths[i])
            target.commit(regions[i], lengths[i], path)
            lengths[i] += len(path)


def assert_broken(target: DecoderTarget, texts: Sequence[PlainText]) -> None:
    """Decode the texts in eight ways; plain decoding's bits must be missed in one of them."""

    def decode() -> None:
        for seed in range(8):
            assert_invariant(target, texts, random.Random(seed))

    with pytest.raises(AssertionError, match="positions"):
        decode()


@lru_cache(maxsize=16)
def loaded(family: str, dtype: torch.dtype, device: str = "cpu") -> tuple[DecoderTarget, tuple[PlainText, ...]]:
    """Return a target that nobody breaks and three texts, shorter ones where layers are slow."""
    made = tiny_target(family, dtype, device=device)
    count = 60 if family in HYBRIDS else 100
    return made, tuple(plain_text(made, seed=seed, count=count) for seed in range(3))
