"""What a gate run compares: read from a gate file, overlaid with flags, checked once.

A gate file is TOML: ``prompts``, ``oracles``, ``targets``, ``dtypes``, ``repeat``, ``max_new_tokens``,
``allow_near_ties``, a table ``[tree]`` whose values may be lists (the grid is their product) and a table ``[server]``.
Knows nothing of servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from jetspec_cli.gating.gate_file import read_gate_file
from jetspec_cli.options import SERVER_FLAGS, choose_rule, trees_of_product
from jetspec_engine.config import (
    DTYPES,
    LINEAR,
    PLAIN,
    TreeConfig,
    check_choice,
    check_integer,
    check_keys,
    check_text,
)
from jetspec_engine.errors import ConfigError

ORACLES = {"linear": LINEAR, "greedy": PLAIN}
TREE_KEYS = tuple(f.name for f in fields(TreeConfig))


@dataclass(frozen=True, kw_only=True)
class GateSpec:
    """One gate run.

    Attributes:
        prompts: the prompts file.
        trees: cells of the grid; empty means the tree that a given server runs.
        oracles: linear, greedy, or both.
        targets: one server is started for each, in each dtype; empty for the one target of ``server``.
        dtypes: one server is started for each; a given server has to run the only one listed, or auto.
        repeat: times every prompt is decoded, by oracle and tree alike.
        max_new_tokens: replaces the prompts' own caps; None keeps them.
        allow_near_ties: near-ties are counted but do not fail.
        server: ServeConfig fields for the servers to be started.
    """

    prompts: Path
    trees: tuple[TreeConfig, ...] = ()
    oracles: tuple[str, ...] = ("linear",)
    targets: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("auto",)
    repeat: int = 1
    max_new_tokens: int | None = None
    allow_near_ties: bool = False
    server: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values, choices in (("oracles", self.oracles, tuple(ORACLES)), ("dtypes", self.dtypes, DTYPES)):
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name}: {', '.join(values) or 'empty'}, expected different names, at least one")
            for value in values:
                check_choice(name, value, choices)
        if len(set(self.targets)) != len(self.targets):
            raise ConfigError(f"targets: {', '.join(self.targets)}, expected different names")
        check_integer("repeat", self.repeat, 1, 1000)
        if self.max_new_tokens is not None:
            check_integer("max_new_tokens", self.max_new_tokens, 1, 1_000_000)
        if not isinstance(self.allow_near_ties, bool):
            raise ConfigError(f"allow_near_ties: {self.allow_near_ties!r}, expected true or false")
        check_keys("server", self.server, (*SERVER_FLAGS, "extra_args"))

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, where: str) -> Self:
        """Make a spec from plain data, as a gate file holds it.

        Raises:
            ConfigError: an unknown key or a value out of range; ``where`` names the source.
        """
        check_keys(where, given, ("tree", *(f.name for f in fields(cls) if f.name != "trees")))
        check_text("prompts", given.get("prompts", ""))
        if not given.get("prompts"):
            raise ConfigError("no prompts file given", hint="jetspec gate --prompts prompts/10.jsonl")
        values = {key: value for key, value in given.items() if key not in ("tree", "prompts")}
        for key in ("oracles", "targets", "dtypes"):
            if key in values:
                values[key] = tuple(_names(key, values[key]))
        if not isinstance(values.get("server", {}), Mapping):
            raise ConfigError(f"server: {values['server']!r}, expected a table")
        return cls(prompts=Path(given["prompts"]), trees=grid(given.get("tree", {})), **values)

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved spec as plain data."""
        return {
            "prompts": str(self.prompts),
            "trees": [tree.to_mapping() for tree in self.trees],
            "oracles": list(self.oracles),
            "targets": list(self.targets),
            "dtypes": list(self.dtypes),
            "repeat": self.repeat,
            "max_new_tokens": self.max_new_tokens,
            "allow_near_ties": self.allow_near_ties,
            "server": dict(self.server),
        }


def load_spec(gate_file: Path | None, flags: Mapping[str, Any]) -> GateSpec:
    """Read a gate file and lay the flags over it.

    Args:
        gate_file: TOML, or None for flags alone. Its ``prompts`` is relative to its own folder.
        flags: what was given on the command line, in the file's shape; ``tree`` and ``server`` merge key by key, and
            a target given there is the only one.

    Raises:
        ConfigError: the file is missing, is not TOML, or a value is wrong; one of the file's own is named with it.
    """
    given: dict[str, Any] = {} if gate_file is None else read_gate_file(gate_file)
    try:
        GateSpec.from_mapping({"prompts": "named by a flag", **given}, where="top level")
    except ConfigError as error:
        raise ConfigError(f"gate file: {gate_file}: {error.what}", hint=error.hint) from error
    merged = {**given, **flags}
    for table in ("tree", "server"):
        if isinstance(given.get(table), Mapping):
            merged[table] = {**given[table], **flags.get(table, {})}
    if "target" in flags.get("server", {}):
        merged.pop("targets", None)
    return GateSpec.from_mapping(merged, where="flags")


def grid(given: Any) -> tuple[TreeConfig, ...]:
    """Return the product of the values given for each tree key; nothing given is an empty grid.

    Raises:
        ConfigError: an unknown key, a value out of range, or beta and g0 with another rule.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"tree: {given!r}, expected a table")
    if not given:
        return ()
    check_keys("tree", given, TREE_KEYS)
    axes = {key: list(value) if isinstance(value, (list, tuple)) else [value] for key, value in given.items()}
    for key, values in axes.items():
        if not values:
            raise ConfigError(f"tree.{key}: an empty list, expected at least one value")
    axes["rule"] = choose_rule(axes.get("rule"), has_gap_options="beta" in axes or "g0" in axes)
    return tuple(dict.fromkeys(trees_of_product(axes)))


def _names(key: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{key}: {value!r}, expected a list of names")
    return values
