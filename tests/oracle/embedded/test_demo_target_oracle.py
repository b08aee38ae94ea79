"""The demo target, where it has been pulled: transformers' logits, and the invariant verify in both dtypes."""

import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from jetspec_cli.environment import cache_dir
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import PlainText, assert_invariant
from support.tiny_models import load_with_transformers

FOLDER = cache_dir() / "smollm2-135m"
pytestmark = pytest.mark.skipif(not (FOLDER / "config.json").exists(), reason="the demo target is not in the cache")
TEXT = Path(__file__).read_text(encoding="utf-8") + "The quick brown fox jumps over the lazy dog. " * 20


def text_ids(count: int) -> np.ndarray:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    return np.array(ids[:count])


@lru_cache(maxsize=2)
def loaded(dtype: torch.dtype) -> DecoderTarget:
    config = DecoderConfig.from_folder(FOLDER)
    return DecoderTarget(config, load_weights(FOLDER, config, dtype=dtype), num_slots=1024, taps=(1, 14, 26))


def test_logits_equal_transformers_in_float32() -> None:
    ids = text_ids(200)
    with torch.no_grad():
        theirs = load_with_transformers(FOLDER)(torch.from_numpy(ids)[None]).logits[0]
    region = SlotRegion(start=10, capacity=300)
    (ours,) = loaded(torch.float32).verify([VerifyItem(region=region, length=0, tree=DraftTree.chain(ids))])
    torch.testing.assert_close(ours.logits, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bits_do_not_depend_on_rounds_siblings_or_company(dtype: torch.dtype) -> None:
    made, texts = loaded(dtype), []
    ids = text_ids(200)
    region = SlotRegion(start=700, capacity=200)
    for start in (0, 90):
        own, results = ids[start : start + 90], []
        for length, token in enumerate(own):
            item = VerifyItem(region=region, length=length, tree=DraftTree.root_only(token))
            results += made.verify([item])
        logits, hidden = (torch.cat([getattr(r, name) for r in results]) for name in ("logits", "hidden"))
        texts.append(PlainText(own, logits, hidden))
    for seed in range(2):
        assert_invariant(made, texts, random.Random(seed))
