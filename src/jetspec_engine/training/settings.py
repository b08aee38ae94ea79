"""Frozen settings of the distillation; each default is written here once.

Knows nothing of flags, files or devices.
"""

from dataclasses import dataclass

from jetspec_engine.config import check_choice, check_integer, check_range
from jetspec_engine.errors import ConfigError

OPTIMIZERS = ("muon", "adamw")
MAX_SECONDS = 1e8


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How the target writes the text.

    Attributes:
        seconds: time to write for; max_rows ends it earlier.
        num_rows: conversations written at once.
        user_max, answer_max: longest continued user turn and answer, tokens.
        user_temperature: for user turns the target continues from a seed.
        answer_temperature: for the share of answers that is sampled; the others are greedy.
        greedy_share: in [0, 1]; serving is greedy, so most of the text should be.
        min_p: a sampled token is at least this likely, relative to the likeliest.
        check_every: decode steps between two looks at which rows ended.
    """

    seconds: float = 120.0
    max_rows: int = 1_000_000
    num_rows: int = 4096
    user_max: int = 48
    answer_max: int = 256
    user_temperature: float = 0.9
    answer_temperature: float = 0.7
    greedy_share: float = 0.8
    min_p: float = 0.05
    check_every: int = 16

    def __post_init__(self) -> None:
        check_range("seconds", self.seconds, 0, MAX_SECONDS)
        for name in ("greedy_share", "min_p"):
            check_range(name, getattr(self, name), 0, 1)
        for name in ("user_temperature", "answer_temperature"):
            check_range(name, getattr(self, name), 0.01, 100)
        for name in ("num_rows", "user_max", "answer_max", "check_every"):
            check_integer(name, getattr(self, name), 1, 1 << 20)
        check_integer("max_rows", self.max_rows, 1, 1 << 40)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How the head learns.

    Attributes:
        seconds: training time in all, over every resumed part; the schedule is a function of it.
        max_steps: ends earlier, and is the schedule's clock when finite (reproducible runs).
        batch: conversations a step.
        short_anchors, short_depth: anchors a conversation whose block ends at that depth. A causal block's first
            positions do not depend on its later ones, so a cut block is exact, and shallow depths earn most.
        full_anchors: anchors a conversation with the whole block.
        depth_decay: the loss weight of depth d is exp(-(d - 1) / depth_decay); 0 means uniform.
        sharpen_from: share of the run after which the two settings below apply; before it the loss is the plain KL.
        teacher_temperature: the target's distribution is sharpened by it below 1: greedy decoding asks which token is
            the likeliest, not how likely it is.
        reach_floor: the loss of a depth is weighted by the head's own chance that a chain gets there, mixed with this
            floor; 1 turns that off.
        optimizer: muon (matrices; AdamW for the norms) or adamw.
        decay_from: share of the run after which the learning rate falls linearly to ``lr_end_share`` of itself.
        chunk: loss rows whose logits are in memory at once.
        is_graphed, is_compiled: on CUDA, replay captured steps, and fuse around the attention with torch.compile.
        checkpoint_every_s: seconds between two checkpoints; 0 for the end only.
    """

    seconds: float = 300.0
    max_steps: int | None = None
    batch: int = 64
    short_anchors: int = 48
    short_depth: int = 7
    full_anchors: int = 16
    depth_decay: float = 7.0
    sharpen_from: float = 0.5
    teacher_temperature: float = 0.6
    reach_floor: float = 0.25
    optimizer: str = "muon"
    lr: float = 3e-3
    adam_lr: float = 1e-3
    weight_decay: float = 0.01
    warmup_steps: int = 100
    decay_from: float = 0.4
    lr_end_share: float = 0.02
    clip_norm: float = 1.0
    chunk: int = 16384
    is_graphed: bool = True
    is_compiled: bool = True
    seed: int = 1
    log_every: int = 100
    checkpoint_every_s: float = 60.0

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_range("seconds", self.seconds, 0.001, MAX_SECONDS)
        if self.max_steps is not None:
            check_integer("max_steps", self.max_steps, 1, 1 << 40)
        check_integer("batch", self.batch, 1, 1 << 16)
        for name in ("short_anchors", "full_anchors"):
            check_integer(name, getattr(self, name), 0, 1 << 16)
        for name in ("short_depth", "chunk", "log_every"):
            check_integer(name, getattr(self, name), 1, 1 << 24)
        check_integer("warmup_steps", self.warmup_steps, 0, 1 << 40)
        for name in ("decay_from", "sharpen_from", "reach_floor", "lr_end_share", "weight_decay"):
            check_range(name, getattr(self, name), 0, 1)
        for name in ("lr", "adam_lr"):
            check_range(name, getattr(self, name), 0, 10)
        check_range("depth_decay", self.depth_decay, 0, 1e6)
        check_range("clip_norm", self.clip_norm, 1e-6, 1e6)
        check_range("checkpoint_every_s", self.checkpoint_every_s, 0, MAX_SECONDS)
        check_range("teacher_temperature", self.teacher_temperature, 0.01, 100)
        if self.short_anchors + self.full_anchors < 1:
            raise ConfigError("short_anchors: 0, full_anchors: 0, expected at least one anchor a conversation")
