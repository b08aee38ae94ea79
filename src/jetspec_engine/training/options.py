"""What one ``train-head`` call does, checked where it is made.

Knows nothing of flags; the command and scripts give a mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jetspec_engine.config import MAX_TREE_WIDTH, check_device, check_integer, check_keys, check_range
from jetspec_engine.errors import ConfigError
from jetspec_engine.training.settings import MAX_SECONDS, TrainSettings, WriteSettings


@dataclass(frozen=True, kw_only=True)
class HeldOutPrompt:
    """One prompt that is never trained on and that the head is measured on: a class and (role, text) messages."""

    label: str
    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What one call does.

    Attributes:
        target: a catalogue name, a Hugging Face folder or id. cache_dir: where pulled models live.
        out: where the head goes. work: where text and training state stay; resume continues from them, and a folder
            that holds some is refused otherwise.
        num_layers, block_size, mask_token_id, target_layer_ids: the head's shape; no ids means the public rule's.
        write, train: see ``settings``. write.seconds 0 trains on the text that is there.
        train_part_s: training time of this call; the schedule spans ``train.seconds`` over all calls.
        num_prompts: user turns composed for the target to answer.
        num_held_out: conversations of the text kept for the curve's held-out figures.
        held_out: prompts to keep out of the text and to measure on, eval_tokens an answer; none skips it.
        kept_out: further user turns to keep out of the text.
        tree_width: W of the measured trees.
    """

    target: str
    out: Path
    work: Path
    cache_dir: Path | None = None
    resume: bool = False
    device: str = "auto"
    num_layers: int = 4
    block_size: int = 16
    mask_token_id: int = 0
    target_layer_ids: tuple[int, ...] = ()
    write: WriteSettings = field(default_factory=WriteSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    train_part_s: float | None = None
    num_prompts: int = 400_000
    num_held_out: int = 128
    held_out: tuple[HeldOutPrompt, ...] = ()
    kept_out: tuple[str, ...] = ()
    eval_tokens: int = 192
    tree_width: int = 8
    seed: int = 1

    def __post_init__(self) -> None:
        check_device(self.device)
        if not isinstance(self.resume, bool):
            raise ConfigError(f"resume: {self.resume!r}, expected true or false")
        if self.train_part_s is not None:
            check_range("train_part_s", self.train_part_s, 0, MAX_SECONDS)
        for name, high in (
            ("num_layers", 128),
            ("num_prompts", 1 << 40),
            ("num_held_out", 1 << 20),
            ("eval_tokens", 1 << 20),
        ):
            check_integer(name, getattr(self, name), 1, high)
        check_integer("block_size", self.block_size, 2, 256)
        check_integer("mask_token_id", self.mask_token_id, 0, (1 << 31) - 1)
        check_integer("tree_width", self.tree_width, 1, MAX_TREE_WIDTH)
        check_integer("seed", self.seed, 0, (1 << 63) - 1)
        for layer in self.target_layer_ids:
            check_integer("target_layer_ids", layer, 0, 1 << 20)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> "TrainOptions":
        """Check names and make the options; ``write`` and ``train`` are mappings of their own fields.

        Raises:
            ConfigError: an unknown key, a missing folder, or a value out of range.
        """
        check_keys("train-head", given, tuple(f.name for f in fields(cls)))
        values = dict(given)
        for name in ("target", "out", "work"):
            if name not in values:
                raise ConfigError(f"train-head: {name}: missing")
        for name, kind in (("write", WriteSettings), ("train", TrainSettings)):
            inner = values.get(name, {})
            check_keys(name, inner, tuple(f.name for f in fields(kind)))
            values[name] = kind(**inner)
        values["held_out"] = tuple(
            HeldOutPrompt(label=p["class"], messages=tuple((m[0], m[1]) for m in p["messages"]))
            for p in values.get("held_out", ())
        )
        for name in ("kept_out", "target_layer_ids"):
            values[name] = tuple(values.get(name, ()))
        for name in ("out", "work", "cache_dir"):
            values[name] = Path(values[name]) if values.get(name) is not None else None
        return cls(**values)
