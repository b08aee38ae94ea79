"""Frozen configuration records, validated where they are made; every default is written here once.

Knows nothing of files, flags or the environment.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from jetspec_engine.errors import ConfigError

TREE_RULES = ("best_first", "top2gap", "accum_logp")
ENGINES = ("auto", "embedded", "sglang")
DTYPES = ("auto", "float32", "bfloat16")
DRAFTERS = ("head", "right", "wrong", "replay", "random", "recall", "scripted")
API_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
MAX_TREE_WIDTH = 64
MAX_TREE_BUDGET = 1024


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless ``low <= value <= high`` and value is a finite number of the right kind."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN fails both comparisons
        raise ConfigError(f"{name}: {value!r}, expected a number in [{low}, {high}]")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless value is an int (not a bool) in ``[low, high]``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name}: {value!r}, expected an integer in [{low}, {high}]")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ConfigError, with the nearest choice as the hint, unless value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name}: {value!r}, expected one of {', '.join(choices)}", hint=did_you_mean(value, choices))


def check_text(name: str, value: object) -> None:
    """Raise ConfigError unless value is a string that can name something (no NUL in it)."""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{name}: {value!r}, expected a name or a path")


def check_api_key(value: str | None) -> None:
    """Raise ConfigError, without the key in it, unless a key can travel in an HTTP header."""
    if value is not None and not API_KEY.fullmatch(value):
        raise ConfigError("api_key: not shown, expected 1 to 4096 visible ASCII characters without spaces")


def check_device(name: object) -> None:
    """Raise ConfigError unless name is spelt like a device; whether it is there is another question."""
    if not isinstance(name, str) or not DEVICE.fullmatch(name):
        raise ConfigError(f"device: {name!r}, expected auto, cpu, cuda or cuda:N")


def did_you_mean(value: object, choices: tuple[str, ...] | list[str]) -> str:
    """Return ``"did you mean X?"`` for the choice closest to value, or an empty string."""
    close = difflib.get_close_matches(str(value), choices, n=1)
    return f"did you mean {close[0]}?" if close else ""


def check_keys(where: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Raise ConfigError naming the first key that is not allowed."""
    for key in given:
        if key not in allowed:
            hint = did_you_mean(key, allowed) or f"allowed: {', '.join(allowed)}"
            raise ConfigError(f"{where}: unknown key {key!r}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class TreeConfig:
    """How drafts become a tree.

    Attributes:
        rule: best_first, top2gap or accum_logp.
        width: W, candidates kept per depth; 1 is the linear path.
        budget: B, most nodes of the tree with the root; None means D + 1, the rows of the linear path.
            1 leaves only the root: plain decoding, no draft. At width 1 a budget above D + 1 is ignored.
        beta: slope of the top2gap rule, used by that rule only.
        g0: gap in nats at which top2gap keeps half the width, used by that rule only.
        keep_spine: keep the whole top-1 chain whatever the rule prefers; branches then need B > D + 1.
    """

    rule: str = "best_first"
    width: int = 8
    budget: int | None = 16
    beta: float = 1.0
    g0: float = 1.0
    keep_spine: bool = False

    def __post_init__(self) -> None:
        check_choice("tree.rule", self.rule, TREE_RULES)
        check_integer("tree.width", self.width, 1, MAX_TREE_WIDTH)
        if self.budget is not None:
            check_integer("tree.budget", self.budget, 1, MAX_TREE_BUDGET)
        check_range("tree.beta", self.beta, -1e6, 1e6)
        check_range("tree.g0", self.g0, -1e6, 1e6)
        if not isinstance(self.keep_spine, bool):
            raise ConfigError(f"tree.keep_spine: {self.keep_spine!r}, expected true or false")

    def resolve_budget(self, depth: int) -> int:
        """Return the budget in nodes for a head of ``depth`` draft positions (root included)."""
        chain = depth + 1
        if self.budget is None:
            return chain
        return min(self.budget, chain) if self.width == 1 else self.budget

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, where: str = "tree") -> Self:
        """Make a TreeConfig from plain data; unknown keys are errors. Beta or g0 without a rule select top2gap."""
        check_keys(where, given, tuple(f.name for f in fields(cls)))
        rule = {"rule": "top2gap"} if "beta" in given or "g0" in given else {}
        return cls(**{**rule, **given})

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


LINEAR = TreeConfig(width=1, budget=None)
PLAIN = TreeConfig(width=1, budget=1)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Everything one server is started with.

    Attributes:
        engine: auto, embedded or sglang.
        target: a catalogue name, a local folder or a Hugging Face id.
        head: the same for the draft head, or "auto" for the one that belongs to the target.
        drafter: "head", or the name of a scripted stand-in (``draft.scripted.STAND_INS``).
        drafter_options: plain data for the stand-in (e.g. seed).
        tree: the tree at start.
        max_width: largest W that may be switched to at run time.
        max_budget: largest B that may be switched to at run time; rows are reserved for it.
        dtype: auto, float32 or bfloat16.
        device: auto, cpu, cuda or cuda:N.
        page_size: slots per KV page.
        max_seq_len: context length served; None takes the smaller of the target's and the head's.
        max_running: requests decoded at the same time; more wait.
        max_queued: requests waiting; more are refused with 503.
        num_threads: intra-op threads on the CPU; None leaves the library's choice.
        cache_dir: folder of pulled models.
        extra_args: passed through to sglang after ``--``.
    """

    engine: str = "auto"
    target: str = "smollm2-135m"
    head: str = "auto"
    drafter: str = "head"
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    tree: TreeConfig = field(default_factory=TreeConfig)
    max_width: int = 8
    max_budget: int = 128
    dtype: str = "auto"
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    page_size: int = 16
    max_seq_len: int | None = None
    max_running: int = 4
    max_queued: int = 256
    num_threads: int | None = None
    cache_dir: str = ""
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("target", "head", "host", "cache_dir"):
            check_text(name, getattr(self, name))
        check_api_key(self.api_key)
        check_choice("engine", self.engine, ENGINES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("drafter", self.drafter, DRAFTERS)
        check_device(self.device)
        check_integer("max_width", self.max_width, 1, MAX_TREE_WIDTH)
        check_integer("max_budget", self.max_budget, 1, MAX_TREE_BUDGET)
        check_integer("port", self.port, 0, 65535)
        check_integer("page_size", self.page_size, 1, 1024)
        check_integer("max_running", self.max_running, 1, 256)
        check_integer("max_queued", self.max_queued, 0, 100_000)
        if self.max_seq_len is not None:
            check_integer("max_seq_len", self.max_seq_len, 2, 10_000_000)
        if self.num_threads is not None:
            check_integer("num_threads", self.num_threads, 1, 4096)
        words: object = self.extra_args
        if not isinstance(words, (list, tuple)):
            raise ConfigError(f"extra_args: {words!r}, expected a list of words")
        for word in words:
            check_text("extra_args", word)
        self.check_tree(self.tree)

    def check_tree(self, tree: TreeConfig) -> None:
        """Raise ConfigError when the tree is larger than what this server reserves."""
        if tree.width > self.max_width:
            raise ConfigError(
                f"tree.width: {tree.width}, this server was started for at most {self.max_width}",
                hint="start it with --max-tree-width",
            )
        if tree.budget is not None and tree.width > 1 and tree.budget > self.max_budget:
            raise ConfigError(
                f"tree.budget: {tree.budget}, this server was started for at most {self.max_budget}",
                hint="start it with --max-budget",
            )
