"""Options that several commands share: their flags, and how flags, files and defaults become configuration.

Precedence is flag > gate file > default, and every default lives in ``jetspec_engine.config``; that is why options
here default to None. Knows nothing of what commands do.
"""

import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jetspec_cli.json_text import parse_json
from jetspec_engine.config import TREE_RULES, ServeConfig, TreeConfig, did_you_mean
from jetspec_engine.errors import ConfigError

CHAIN = "chain"
MAX_TREES = 10_000
# The ten prompts of a clone: what is measured when nothing else is named (R3).
PROMPTS = "prompts/10.jsonl"

SERVE, TREE = ServeConfig(), TreeConfig()

Engine = Annotated[str | None, typer.Option("--engine", help=f"auto, embedded or sglang.  [default: {SERVE.engine}]")]
Target = Annotated[
    str | None,
    typer.Option("--target", help=f"Target: a name, a folder or a Hugging Face id.  [default: {SERVE.target}]"),
]
Head = Annotated[
    str | None,
    typer.Option("--head", help=f"Draft head: the same, or auto for the target's own.  [default: {SERVE.head}]"),
]
DrafterName = Annotated[
    str | None,
    typer.Option("--drafter", help=f"head, or a stand-in: recall, random, right, wrong.  [default: {SERVE.drafter}]"),
]
Device = Annotated[str | None, typer.Option("--device", help=f"auto, cpu, cuda or cuda:N.  [default: {SERVE.device}]")]
PageSize = Annotated[int | None, typer.Option("--page-size", help=f"Slots per KV page.  [default: {SERVE.page_size}]")]
MaxSeqLen = Annotated[
    int | None, typer.Option("--max-seq-len", help="Context length; target and head decide if unset.")
]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads on the CPU; all cores if unset.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="Key of the server (or JETSPEC_API_KEY).")]
Extra = Annotated[list[str] | None, typer.Argument(metavar="[-- SGLANG OPTIONS]", help="Passed on to sglang.")]
Format = Annotated[str, typer.Option("--format", help="table or json.")]
KeepSpine = Annotated[bool | None, typer.Option("--keep-spine/--no-keep-spine", help="Keep the whole top-1 chain.")]

# ServeConfig fields that a gate file's [server] table may set, and the flag of `jetspec serve` for each.
SERVER_FLAGS = {
    "engine": "--engine",
    "target": "--target",
    "head": "--head",
    "drafter": "--drafter",
    "max_width": "--max-tree-width",
    "max_budget": "--max-budget",
    "device": "--device",
    "page_size": "--page-size",
    "max_seq_len": "--max-seq-len",
    "max_running": "--max-running",
    "num_threads": "--threads",
}


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, that is, are not None."""
    return {name: value for name, value in options.items() if value is not None}


def check_format(value: str, allowed: Sequence[str] = ("table", "json")) -> None:
    """Raise ConfigError for an output format nobody writes."""
    if value not in allowed:
        raise ConfigError(
            f"--format: {value!r}, expected one of {', '.join(allowed)}", hint=did_you_mean(value, list(allowed))
        )


def split_list(value: str | None) -> list[str] | None:
    """Split ``"4,7"``; None stays None."""
    return None if value is None else [part.strip() for part in value.split(",")]


def parse_integers(flag: str, value: str | None) -> list[int] | None:
    """Parse ``"4,7"``. Raises ConfigError."""
    return _parse(flag, value, int, "integers, such as 4,7")


def parse_numbers(flag: str, value: str | None) -> list[float] | None:
    """Parse ``"0.5,1"``. Raises ConfigError."""
    return _parse(flag, value, float, "numbers, such as 0.5,1")


def parse_budget(flag: str, value: str | None) -> int | str | None:
    """Parse ``"16"`` or ``"chain"``. Raises ConfigError."""
    budgets = parse_budgets(flag, value)
    if budgets is not None and len(budgets) > 1:
        raise ConfigError(f"{flag}: {value!r}, expected one integer or chain")
    return budgets[0] if budgets else None


def parse_budgets(flag: str, value: str | None) -> list[int | str] | None:
    """Parse ``"16,chain"``; chain means D + 1, the rows of the linear path. Raises ConfigError."""
    return _parse(flag, value, lambda part: part if part == CHAIN else int(part), "integers or chain, such as 16,64")


def parse_settings(flag: str, pairs: Sequence[str], groups: Sequence[str]) -> dict[str, Any]:
    """Parse ``["seed=2", "write.num_rows=64"]``: values are JSON, else text; every group is there, if empty.

    Raises:
        ConfigError: no ``NAME=VALUE``, or a value for a whole group.
    """
    found: dict[str, Any] = {group: {} for group in groups}
    for pair in pairs:
        name, is_pair, text = pair.partition("=")
        group, _, inner = name.rpartition(".")
        if not is_pair or not inner or name in groups:
            raise ConfigError(
                f"{flag}: {pair!r}, expected NAME=VALUE or one of {', '.join(groups)} as GROUP.NAME=VALUE"
            )
        try:
            value = parse_json(text)
        except ValueError:
            value = text
        (found.setdefault(group, {}) if group else found)[inner] = value
    return found


def _parse(flag: str, value: str | None, read: Any, expected: str) -> list[Any] | None:
    try:
        return None if value is None else [read(part) for part in split_list(value) or []]
    except ValueError as error:
        raise ConfigError(f"{flag}: {value!r}, expected {expected}") from error


def choose_rule(rules: Sequence[str] | None, *, has_gap_options: bool) -> list[str]:
    """Return the tree rules that apply: beta and g0 select top2gap.

    Raises:
        ConfigError: beta or g0 together with another explicit rule, which would ignore them.
    """
    if not has_gap_options:
        return list(rules or [TreeConfig.rule])
    for rule in rules or ():
        if rule != "top2gap" and rule in TREE_RULES:
            raise ConfigError(
                f"beta and g0 belong to the rule top2gap, the rule given is {rule}",
                hint="leave out the rule or the two",
            )
    return list(rules or ["top2gap"])


def trees_of_product(axes: Mapping[str, Sequence[Any]]) -> list[TreeConfig]:
    """Return the tree of every combination of the values given for each key; a budget may be CHAIN.

    A width without a budget means D + 1 nodes, the rows of the linear path (R25).

    Raises:
        ConfigError: a value out of range, or more combinations than anybody would wait for.
    """
    axes = {**axes, "budget": axes.get("budget", [CHAIN if "width" in axes else TreeConfig.budget])}
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_TREES:
        raise ConfigError(f"tree: {count} combinations, expected at most {MAX_TREES}")
    cells = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [TreeConfig.from_mapping({**c, "budget": None if c["budget"] == CHAIN else c["budget"]}) for c in cells]


def tree_from(settings: Mapping[str, Any]) -> TreeConfig:
    """Make the tree of one server from the given settings; see ``trees_of_product``."""
    has_gap_options = "beta" in settings or "g0" in settings
    rule = choose_rule([settings["rule"]] if "rule" in settings else None, has_gap_options=has_gap_options)[0]
    return trees_of_product({key: [value] for key, value in {**settings, "rule": rule}.items()})[0]


def serve_config(settings: Mapping[str, Any], trees: Sequence[TreeConfig]) -> ServeConfig:
    """Make a server's configuration that starts with the first tree and has room for all of them.

    Args:
        settings: ServeConfig fields that were given.
        trees: at least one; the room reserved is never below the default.
    """
    width = max(tree.width for tree in trees)
    # The linear path ignores a budget above its own rows, so it needs no room.
    budget = max((tree.budget or 1 for tree in trees if tree.width > 1), default=1)
    room = {"max_width": max(width, SERVE.max_width), "max_budget": max(budget, SERVE.max_budget)}
    config = ServeConfig(**{**room, **settings, "tree": trees[0]})
    for tree in trees:
        config.check_tree(tree)
    return config


def server_arguments(config: ServeConfig) -> list[str]:
    """Return the words after ``jetspec serve`` that make this configuration; port, format, key and cache aside."""
    words = ["--dtype", config.dtype, *tree_arguments(config.tree)]
    for name, flag in SERVER_FLAGS.items():
        value = getattr(config, name)
        if value != getattr(SERVE, name):
            words += [flag, str(value)]
    return [*words, *(["--", *config.extra_args] if config.extra_args else [])]


def tree_arguments(tree: TreeConfig) -> list[str]:
    """Return the flags that make this tree."""
    budget = CHAIN if tree.budget is None else str(tree.budget)
    words = ["--tree-width", str(tree.width), "--budget", budget, "--tree-rule", tree.rule]
    if tree.rule == "top2gap":
        words += ["--beta", repr(tree.beta), "--g0", repr(tree.g0)]
    return [*words, *(["--keep-spine"] if tree.keep_spine else [])]


def writable_file(flag: str, path: Path | None) -> None:
    """Raise ConfigError when a file could not be written there (found before hours of work)."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise ConfigError(f"{flag}: {path}: a folder, expected a file", hint=f"{flag} {path / 'FILE'}")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{flag}: {path}: no such folder {path.parent}", hint=f"mkdir -p {path.parent}")
        if path.exists() and not path.is_file():
            return  # a pipe or a device
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}."):
            return
    except (OSError, ValueError) as error:
        raise _unwritable(flag, path, error) from error


def writable_folder(flag: str, path: Path) -> None:
    """Make a folder to write to. Raises ConfigError when it cannot be made or written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except FileExistsError as error:
        raise ConfigError(f"{flag}: {path}: a file, expected a folder", hint=f"name another folder: {flag}") from error
    except (OSError, ValueError) as error:
        raise _unwritable(flag, path, error) from error


def separate_files(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raise ConfigError when what is written would replace what is read, or another output.

    Args:
        outputs, inputs: files by the flag that names them. Pipes and devices may be named twice.
    """
    taken = {_place(path): flag for flag, path in inputs.items() if path is not None}
    for flag, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        earlier = taken.setdefault(_place(path), flag)
        if earlier != flag:
            raise ConfigError(f"{flag}: {path}: the file of {earlier} too", hint=f"name another file: {flag}")


def _place(path: Path) -> tuple[int, int] | str:
    """Return what two names of one file share: links of both kinds are one file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _unwritable(flag: str, path: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{flag}: {str(path)[:200]}: cannot be written: {reason}", hint=f"name another place: {flag}")
