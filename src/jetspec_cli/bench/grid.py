"""The grid of a sweep: every combination of tree settings, each paired with the linear path.

Knows nothing of servers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jetspec_cli.bench.plan import Pairing, pair
from jetspec_cli.options import choose_rule, trees_of_product
from jetspec_engine.config import PLAIN, TREE_RULES, TreeConfig, check_choice
from jetspec_engine.errors import ConfigError

GAP_RULE = "top2gap"


def trees_of(settings: Mapping[str, Sequence[Any]]) -> list[TreeConfig]:
    """Return every tree of a grid, each once.

    Args:
        settings: lists for width, budget, rule, beta, g0 and keep_spine; what is absent has its default. beta and
            g0 multiply cells of top2gap only, so several rules may stand beside them.

    Raises:
        ConfigError: a value out of range, or beta and g0 without top2gap.
    """
    for key, values in settings.items():
        if not values:
            raise ConfigError(f"{key}: an empty list, expected at least one value")
    has_gap_options = "beta" in settings or "g0" in settings
    rules = list(settings.get("rule") or choose_rule(None, has_gap_options=has_gap_options))
    for rule in rules:
        check_choice("tree.rule", rule, TREE_RULES)
    if has_gap_options and GAP_RULE not in rules:
        # Refuses by the same words as everywhere else.
        choose_rule(rules, has_gap_options=True)
    axes = {key: settings[key] for key in ("width", "budget", "keep_spine") if key in settings}
    trees = []
    for rule in rules:
        gaps = {key: settings[key] for key in ("beta", "g0") if key in settings} if rule == GAP_RULE else {}
        trees += trees_of_product({**gaps, **axes, "rule": [rule]})
    return list(dict.fromkeys(trees))


def pairings_of(trees: Sequence[TreeConfig]) -> tuple[Pairing, ...]:
    """Return plain decoding beside linear, then every tree beside linear, so that all speeds can be related."""
    first = pair(PLAIN, ["linear"])
    return tuple(dict.fromkeys((first, *(pair(tree, ["linear"]) for tree in trees if tree != PLAIN))))
