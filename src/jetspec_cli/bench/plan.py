"""What a measurement runs: arms (configurations) in pairings that are interleaved, over blocks of prompts.

A pairing's arms decode the same block of prompts one after the other, so that a machine that drifts drifts for all
of them. A block is one prompt at concurrency 1, and the whole set otherwise. Knows nothing of servers and results.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.describe import tree_label
from jetspec_engine.config import LINEAR, PLAIN, TreeConfig, check_integer, check_range
from jetspec_engine.errors import ConfigError

AS_STARTED = "as started"
OTHER = "other server"
PLAIN_LABEL = "plain"
BASELINES: Mapping[str, TreeConfig] = {"linear": LINEAR, PLAIN_LABEL: PLAIN}
DEFAULT_MAX_NEW_TOKENS = 128
GUESSED_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One configuration: its label and its tree; None leaves the server as it was started."""

    label: str
    tree: TreeConfig | None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the linear path or plain decoding."""
        return self.label in BASELINES

    @property
    def is_other(self) -> bool:
        """Whether this is another server, as it was started, to compare speeds with."""
        return self.label == OTHER


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Arms that are interleaved."""

    label: str
    arms: tuple[Arm, ...]

    @property
    def oracle(self) -> Arm | None:
        """The arm whose tokens the others are held against: linear, else plain, else nobody."""
        by_label = {arm.label: arm for arm in self.arms}
        return next((by_label[name] for name in BASELINES if name in by_label and len(by_label) > 1), None)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Prompts that every arm of a pairing decodes before the next block begins."""

    pairing: Pairing
    repeat: int
    index: int
    prompts: tuple[Prompt, ...]

    @property
    def arms_in_turn(self) -> tuple[Arm, ...]:
        """The arms, each block beginning with another one."""
        first = (self.repeat + self.index) % len(self.pairing.arms)
        return self.pairing.arms[first:] + self.pairing.arms[:first]


@dataclass(frozen=True, kw_only=True)
class Load:
    """How requests are sent.

    Attributes:
        repeat: passes over the prompts.
        concurrency: requests in flight at most.
        request_rate: requests a second on average, arriving at random (Poisson); None sends as fast as allowed.
        max_new_tokens: replaces the prompts' own caps; None keeps them.
        seed: of the arrivals.
    """

    repeat: int = 3
    concurrency: int = 1
    request_rate: float | None = None
    max_new_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("repeat", self.repeat, 1, 1000)
        check_integer("concurrency", self.concurrency, 1, 4096)
        if self.max_new_tokens is not None:
            check_integer("max_new_tokens", self.max_new_tokens, 1, 1_000_000)
        if self.request_rate is not None:
            check_range("request_rate", self.request_rate, 1e-3, 1e6)

    @property
    def is_one_by_one(self) -> bool:
        """Whether a block is a single prompt, so that the cache is flushed before each."""
        return self.concurrency == 1 and self.request_rate is None

    def num_at_once(self, num_prompts: int) -> int:
        """Return how many requests a server may have to serve at the same time; a guess where they arrive at random."""
        return min(self.concurrency if self.request_rate is None else GUESSED_AT_ONCE, num_prompts)

    def cap(self, prompt: Prompt) -> int:
        """Return the most tokens a prompt may give."""
        return self.max_new_tokens or prompt.max_new_tokens or DEFAULT_MAX_NEW_TOKENS


@dataclass(frozen=True, kw_only=True)
class BenchSpec:
    """One measurement.

    Attributes:
        kind: bench or sweep.
        prompts: the prompts files.
        pairings: in the order they run.
        load: how requests are sent.
        dtype: of a server to be started; a given server has to run it, unless auto.
        server: ServeConfig fields of a server to be started.
        allow_near_ties: near-ties do not fail a cell.
        replay: whether cells are replayed from recordings and only the promising ones measured; None decides by the
            grid and the server. Measured rows are the same either way, so it is no part of the fingerprint.
    """

    kind: str
    prompts: tuple[Path, ...]
    pairings: tuple[Pairing, ...]
    load: Load = field(default_factory=Load)
    dtype: str = "auto"
    server: Mapping[str, Any] = field(default_factory=dict)
    allow_near_ties: bool = False
    replay: bool | None = False

    @property
    def trees(self) -> tuple[TreeConfig, ...]:
        """Every tree that is switched to."""
        return tuple(dict.fromkeys(a.tree for p in self.pairings for a in p.arms if a.tree is not None))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every arm once, in order."""
        return tuple(dict.fromkeys(arm for pairing in self.pairings for arm in pairing.arms))

    def blocks(self, prompts: Sequence[Prompt]) -> Iterator[Block]:
        """Yield the blocks in the order they run."""
        size = 1 if self.load.is_one_by_one else len(prompts)
        for pairing in self.pairings:
            for repeat in range(self.load.repeat):
                for index, start in enumerate(range(0, len(prompts), size)):
                    chosen = tuple(prompts[start : start + size])
                    yield Block(pairing=pairing, repeat=repeat, index=index, prompts=chosen)

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved spec as plain data."""
        pairings = [
            {"label": p.label, "arms": [{"label": a.label, "tree": a.tree and a.tree.to_mapping()} for a in p.arms]}
            for p in self.pairings
        ]
        return {
            "prompts": [path.name for path in self.prompts],
            "pairings": pairings,
            **asdict(self.load),
            "dtype": self.dtype,
            "server": dict(self.server),
            "allow_near_ties": self.allow_near_ties,
        }

    def fingerprint(self, prompts: Sequence[Prompt], url: str | None) -> str:
        """Return a digest that two measurements share when the rows of one may stand in the other."""
        asked = [(p.prompt_id, p.content_key, p.text_class, self.load.cap(p)) for p in prompts]
        content = json.dumps([self.kind, self.to_mapping(), asked, url], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def arm_of(tree: TreeConfig | None) -> Arm:
    """Return the arm of a tree; the linear path and plain decoding have their own labels."""
    if tree is None:
        return Arm(label=AS_STARTED, tree=None)
    for label, baseline in BASELINES.items():
        if tree == baseline:
            return Arm(label=label, tree=tree)
    return Arm(label=tree_label(tree), tree=tree)


def pair(tree: TreeConfig | None, baselines: Sequence[str], *, has_other: bool = False) -> Pairing:
    """Return the pairing of a tree with baselines, and with another server where there is one.

    Raises:
        ConfigError: a baseline nobody knows.
    """
    for name in baselines:
        if name not in BASELINES:
            raise ConfigError(f"compare: {name!r}, expected {' or '.join(BASELINES)}")
    candidate = arm_of(tree)
    others = [Arm(label=OTHER, tree=None)] if has_other else []
    arms = dict.fromkeys((candidate, *(Arm(label=name, tree=BASELINES[name]) for name in baselines), *others))
    return Pairing(label=candidate.label, arms=tuple(arms))
