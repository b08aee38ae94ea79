"""Reads a target's folder for training: weights, tokenizer and the text its chat template puts around a user turn.

Refuses targets whose forward ``frozen_target`` does not compute, rather than distilling another model's head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.store import is_folder, pull
from jetspec_engine.models.tokenizer import TOKENIZER_FILE, ModelTokenizer
from jetspec_engine.models.weights import load_weights
from jetspec_engine.records import Progress
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.prompts import ChatFormat

PROBE = "Jetspec probe."
SHORT_SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class TargetFiles:
    """A target ready to write and to be learned from."""

    target: FrozenTarget
    tokenizer: ModelTokenizer
    batch_tokenizer: Tokenizer
    chat: ChatFormat

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Encode rendered texts, special tokens read as such and none added."""
        return [one.ids for one in self.batch_tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Decode token ids, special tokens spelt out."""
        texts: list[str] = self.batch_tokenizer.decode_batch(rows, skip_special_tokens=False)
        return texts

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Encode (role, text) messages up to where the answer starts."""
        return self.tokenizer.encode_rendered(render(self.tokenizer, messages))


def find_target(name: str, cache_dir: Path | None, on_progress: Callable[[Progress], None]) -> Path:
    """Return the folder of a target: a folder as it is, a name or id through the model store (pulled if need be)."""
    if cache_dir is None and not is_folder(name):
        raise ArtifactError(f"target: {name}: no such folder, and no cache folder to look in")
    return pull(name, cache_dir or Path(), on_progress)


def read_target(
    folder: Path, *, device: torch.device, dtype: torch.dtype, max_positions: int, is_compiled: bool = False
) -> TargetFiles:
    """Load a Hugging Face folder of a dense Llama, Qwen2 or Qwen3 target.

    Raises:
        ArtifactError: files that are missing or bad, or a feature the training forward lacks.
    """
    config = DecoderConfig.from_folder(folder)
    refuse_what_training_lacks(folder, config)
    weights = load_weights(folder, config, dtype=dtype)
    target = FrozenTarget(
        weights, config, device=device, dtype=dtype, max_positions=max_positions, is_compiled=is_compiled
    )
    tokenizer = ModelTokenizer.from_folder(folder, config)
    batch_tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    batch_tokenizer.no_truncation()
    batch_tokenizer.no_padding()
    return TargetFiles(target, tokenizer, batch_tokenizer, chat_format(tokenizer, config.eos_token_ids))


def refuse_what_training_lacks(folder: Path, config: DecoderConfig) -> None:
    """Raise ArtifactError for a target with scaled rotary embedding, sliding windows or an output bias."""
    for name, value in (
        ("rope_scaling", config.rope_scaling),
        ("sliding_window", next(filter(None, config.sliding_windows), None)),
        ("o_proj.bias", config.has_o_bias),
    ):
        if value:
            raise ArtifactError(f"{folder}: {name}: {value}, expected none: head training does not compute it")


def chat_format(tokenizer: ModelTokenizer, eos_token_ids: Sequence[int]) -> ChatFormat:
    """Find what the template puts before and after a user turn: by itself, and with a system text.

    Raises:
        ArtifactError: no chat template, or one whose turns do not end in an end token.
    """
    renders = [render(tokenizer, [("user", PROBE)]), render(tokenizer, [("system", SHORT_SYSTEM), ("user", PROBE)])]
    prefixes = tuple(dict.fromkeys(text.partition(PROBE)[0] for text in renders))
    suffix = renders[0].rpartition(PROBE)[2]
    first = tokenizer.encode_rendered(suffix)[:1]
    if not first or first[0] not in eos_token_ids:
        raise ArtifactError(f"chat template: a user turn is followed by {suffix[:40]!r}, expected an end token first")
    return ChatFormat(prefixes=prefixes, suffix=suffix, end_id=first[0])


def render(tokenizer: ModelTokenizer, messages: Sequence[tuple[str, str]]) -> str:
    """Return the chat template's text of (role, text) messages, the answer's opening included."""
    if not tokenizer.has_chat_template:
        raise ArtifactError("tokenizer: no chat template, expected one to write conversations with")
    return tokenizer.render_chat([{"role": role, "content": text} for role, text in messages])
