"""A byte-level BPE tokenizer rebuilt from a GGUF file's vocabulary, as tokenizer.json and tokenizer_config.json.

Knows no tensors. A GGUF file names its pre-tokenizer but does not carry it; of those names only ``smollm`` is known
here: every digit is a piece of its own, then the GPT-2 pattern splits what is between.

Source: the splitting rule is the one published with the SmolLM tokenizer and used by llama.cpp under that name.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from jetspec_engine.models.gguf_file import GgufFile

CONTROL_TOKEN = 3


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json (special tokens, chat template) into the folder.

    Raises:
        ArtifactError: another kind of tokenizer than byte-level BPE with the ``smollm`` pre-tokenizer.
    """
    tokens: list[str] = gguf.field("tokenizer.ggml.tokens")
    special = {
        name: tokens[gguf.field(f"tokenizer.ggml.{key}_token_id")]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    tokenizer = build_tokenizer(gguf, tokens, unknown=special["unk_token"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.field("llama.context_length"),
        "chat_template": gguf.field("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", "utf-8")


def build_tokenizer(gguf: GgufFile, tokens: list[str], *, unknown: str) -> Tokenizer:
    """Return the tokenizer; bytes the vocabulary lacks become the unknown token."""
    for key, expected in (("model", "gpt2"), ("pre", "smollm")):
        if gguf.field(f"tokenizer.ggml.{key}") != expected:
            gguf.refuse(f"tokenizer.ggml.{key}", gguf.field(f"tokenizer.ggml.{key}"), expected)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in gguf.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.field("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
