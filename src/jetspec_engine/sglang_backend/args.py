"""Our options on SGLang's command line, and what they mean as a ``TreeConfig``.

The same settings come as options (``--speculative-dflash-tree-width 8``) or as one JSON object
(``--speculative-config``); an option beats the JSON, which beats the default. Imports nothing of sglang: it adds to
any argparse parser and reads any namespace. Knows nothing of models, so "chain" stays a word until the head is known.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from jetspec_engine.config import (
    MAX_TREE_BUDGET,
    MAX_TREE_WIDTH,
    TREE_RULES,
    TreeConfig,
    check_integer,
    check_keys,
    did_you_mean,
)
from jetspec_engine.errors import ConfigError
from jetspec_engine.json_text import parse_json

ALGORITHM = "JETSPEC"
CHAIN = "chain"
OPTION_PREFIX = "--speculative-dflash-"
CONFIG_OPTION = "--speculative-config"

# Our keys, as they stand in the JSON, and how an option's text is read.
READERS: Mapping[str, Any] = {
    "tree_width": int,
    "tree_budget": lambda text: text if text == CHAIN else int(text),
    "tree_rule": str,
    "tree_beta": float,
    "tree_g0": float,
    "tree_keep_spine": lambda text: {"true": True, "false": False}[text],
    "tree_max_width": int,
    "tree_budgets": lambda text: [int(part) for part in text.split(",")],
    "draft_script": str,
}
HELP = {
    "tree_width": "W: candidates kept per depth; 1 is the linear path.",
    "tree_budget": "B: most nodes of the tree, root included, or chain (D + 1).",
    "tree_rule": f"How drafts become a tree: {', '.join(TREE_RULES)}.",
    "tree_beta": "Slope of the top2gap rule; selects it.",
    "tree_g0": "Gap in nats at which top2gap halves W; selects it.",
    "tree_keep_spine": "true or false: keep the whole top-1 chain.",
    "tree_max_width": "Largest W to switch to at run time.",
    "tree_budgets": "Budgets to capture graphs for, such as 16,64; the tree's own is always captured.",
    "draft_script": "JSON file of drafts in place of the head's, for measurements with dummy weights and for tests.",
}
ALLOWED_KEYS = ("method", *READERS)


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """The tree a server starts with and what it can switch to.

    Attributes:
        tree: at start.
        max_width: largest W at run time.
        budgets: budgets in nodes that graphs are captured for, ascending; the chain is captured whatever they are.
        draft_script: file of drafts in place of the head's (see ``draft_script``), None for the head's own.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    max_width: int = 8
    budgets: tuple[int, ...] = (16,)
    draft_script: str | None = None

    def __post_init__(self) -> None:
        check_integer("tree_max_width", self.max_width, 1, MAX_TREE_WIDTH)
        if self.tree.width > self.max_width:
            raise ConfigError(f"tree_width: {self.tree.width}, expected at most tree_max_width {self.max_width}")
        for budget in self.budgets:
            check_integer("tree_budgets", budget, 1, MAX_TREE_BUDGET)
        if list(self.budgets) != sorted(set(self.budgets)):
            raise ConfigError(f"tree_budgets: {list(self.budgets)}, expected distinct budgets in ascending order")

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as plain data, as they travel to SGLang's other processes."""
        return {
            "tree": self.tree.to_mapping(),
            "max_width": self.max_width,
            "budgets": list(self.budgets),
            "draft_script": self.draft_script,
        }

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Read what ``to_mapping`` wrote. Raises ConfigError."""
        check_keys("tree settings", given, tuple(item.name for item in fields(cls)))
        tree = TreeConfig.from_mapping(given["tree"])
        return cls(**{**given, "tree": tree, "budgets": tuple(given["budgets"])})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add our options to SGLang's parser. Their values stay text here, so that errors are ours and name the option."""
    group = parser.add_argument_group("JetSpec", f"draft trees; read with --speculative-algorithm {ALGORITHM}")
    for key, help_text in HELP.items():
        group.add_argument(_option(key), dest=_dest(key), default=None, help=help_text)
    group.add_argument(
        CONFIG_OPTION,
        default=None,
        help=f"The same as one JSON object; keys: {', '.join(ALLOWED_KEYS)}. Read for {ALGORITHM} only.",
    )


def settings_from_namespace(namespace: argparse.Namespace) -> TreeSettings | None:
    """Read our options from a parsed command line.

    Args:
        namespace: as parsed by a parser that ``add_options`` was given; not changed.

    Returns:
        The settings, or None when the algorithm is not ours; then another algorithm's ``--speculative-config`` is not
        even parsed.

    Raises:
        ConfigError: a bad value; tree options given for another algorithm, which would ignore them.
    """
    texts = {key: getattr(namespace, _dest(key), None) for key in READERS}
    given: dict[str, str] = {key: text for key, text in texts.items() if text is not None}
    algorithm = getattr(namespace, "speculative_algorithm", None)
    if str(algorithm or "").upper() != ALGORITHM:
        if given:
            option = _option(next(iter(given)))
            raise ConfigError(
                f"{option}: the speculative algorithm is {algorithm or 'none'}, which has no tree",
                hint=f"--speculative-algorithm {ALGORITHM}",
            )
        return None
    text = getattr(namespace, "speculative_config", None)
    document = {} if text is None else parse_config(text)
    return resolve({**document, **{key: _read(key, value) for key, value in given.items()}})


def parse_config(text: str) -> dict[str, Any]:
    """Parse the JSON of ``--speculative-config`` for our algorithm.

    Raises:
        ConfigError: not one JSON object, a key given twice, an unknown key (the hint lists the allowed ones), a
            number JSON does not have, or another method.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{CONFIG_OPTION}: not JSON: {error}", hint="""such as '{"tree_width": 8}'""") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{CONFIG_OPTION}: {type(document).__name__}, expected a JSON object")
    for key in document:
        if key not in ALLOWED_KEYS:
            close = did_you_mean(key, ALLOWED_KEYS)
            allowed = f"allowed: {', '.join(ALLOWED_KEYS)}"
            raise ConfigError(f"{CONFIG_OPTION}: unknown key {key!r}", hint=f"{close} {allowed}".strip())
    method = document.pop("method", ALGORITHM)
    if not isinstance(method, str) or method.upper() != ALGORITHM:
        raise ConfigError(f"{CONFIG_OPTION}: method: {method!r}, expected {ALGORITHM} or nothing")
    return document


def resolve(given: Mapping[str, Any]) -> TreeSettings:
    """Make the settings from our keys.

    Beta and g0 select top2gap. An unset budget beside a given width means D + 1 nodes.

    Raises:
        ConfigError: a value of the wrong kind or range, or beta or g0 beside another rule.
    """
    has_gap = "tree_beta" in given or "tree_g0" in given
    rule = given.get("tree_rule", "top2gap" if has_gap else TreeConfig.rule)
    if has_gap and rule in TREE_RULES and rule != "top2gap":
        raise ConfigError(
            f"tree_beta and tree_g0 belong to the rule top2gap, the rule given is {rule}",
            hint="leave out the rule or the two",
        )
    budget = given.get("tree_budget", None if "tree_width" in given else TreeConfig.budget)
    names = {"tree_width": "width", "tree_beta": "beta", "tree_g0": "g0", "tree_keep_spine": "keep_spine"}
    values = {name: given[key] for key, name in names.items() if key in given}
    tree = TreeConfig(**values, rule=rule, budget=None if budget == CHAIN else budget)
    budgets = given.get("tree_budgets", [])
    if not isinstance(budgets, list):
        raise ConfigError(f"tree_budgets: {budgets!r}, expected a list of budgets")
    for each in budgets:
        check_integer("tree_budgets", each, 1, MAX_TREE_BUDGET)
    own = {tree.budget} if tree.width > 1 and tree.budget is not None else set()
    return TreeSettings(
        tree=tree,
        max_width=given.get("tree_max_width", max(tree.width, TreeSettings.max_width)),
        budgets=tuple(sorted(own | set(budgets))),
        draft_script=given.get("draft_script"),
    )


def option_words(settings: TreeSettings) -> list[str]:
    """Return the command line that ``settings_from_namespace`` reads as these settings."""
    tree = settings.tree
    values = {
        "tree_width": tree.width,
        "tree_budget": CHAIN if tree.budget is None else tree.budget,
        "tree_rule": tree.rule,
        "tree_max_width": settings.max_width,
    }
    if tree.rule == "top2gap":
        values |= {"tree_beta": repr(float(tree.beta)), "tree_g0": repr(float(tree.g0))}
    if tree.keep_spine:
        values["tree_keep_spine"] = "true"
    if settings.draft_script is not None:
        values["draft_script"] = settings.draft_script
    if settings.budgets:
        values["tree_budgets"] = ",".join(map(str, settings.budgets))
    # One word each: a value that begins with a dash is no option then.
    return [f"{_option(key)}={value}" for key, value in values.items()]


def _option(key: str) -> str:
    return OPTION_PREFIX + key.replace("_", "-")


def _dest(key: str) -> str:
    return f"speculative_dflash_{key}"


def _read(key: str, text: str) -> Any:
    try:
        value = READERS[key](text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{_option(key)}: {text!r}, cannot be read", hint=HELP[key]) from error
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{_option(key)}: {text!r}, expected a finite number")
    return value
