"""Which tree a server drafts now, and which it can be switched to without a new capture.

Written by the scheduler between rounds. Knows which settings are possible; nothing of models and forwards.
"""

from collections.abc import Mapping

from jetspec_engine.config import TREE_RULES, TreeConfig
from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.args import TreeSettings


class TreeSwitch:
    """The current tree of one worker.

    Args:
        settings: the tree at start and what can be switched to.
        depth: D of the head.

    Attributes:
        captured: verify rows that graphs are captured for, ascending, the chain's D + 1 among them.
    """

    def __init__(self, settings: TreeSettings, depth: int) -> None:
        self._settings, self._depth = settings, depth
        self.captured = captured_rows(settings, depth)
        self.set(settings.tree)

    @property
    def tree(self) -> TreeConfig:
        """The tree of the next round."""
        return self._tree

    @property
    def rows(self) -> int:
        """Verify rows of the next round: the least captured number that holds the budget."""
        return next(rows for rows in self.captured if rows >= self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """The budget of the next round in nodes, root included."""
        return self._tree.resolve_budget(self._depth)

    def set(self, tree: TreeConfig) -> None:
        """Switch from the next round on.

        Raises:
            ConfigError: wider or larger than the server was started for.
        """
        check_tree(tree, self._settings, self._depth)
        self._tree = tree


def captured_rows(settings: TreeSettings, depth: int) -> tuple[int, ...]:
    """Return the numbers of verify rows to capture graphs for, ascending; the chain is always one."""
    own = {} if settings.max_width == 1 else {settings.tree.resolve_budget(depth), *settings.budgets}
    return tuple(sorted({depth + 1, *own}))


def check_tree(tree: TreeConfig, settings: TreeSettings, depth: int) -> None:
    """Raise ConfigError, naming the setting, for a tree that a started server cannot switch to."""
    if tree.width > settings.max_width:
        raise ConfigError(f"tree.width: {tree.width}, expected at most {settings.max_width}, the width started with")
    largest = captured_rows(settings, depth)[-1]
    if tree.resolve_budget(depth) > largest:
        raise ConfigError(
            f"tree.budget: {tree.resolve_budget(depth)}, expected at most {largest}, the largest captured"
        )


def tree_numbers(tree: TreeConfig) -> dict[str, float]:
    """Return a tree as numbers, the only values SGLang's control messages carry."""
    return {
        "jetspec_width": tree.width,
        "jetspec_budget": 0 if tree.budget is None else tree.budget,
        "jetspec_rule": TREE_RULES.index(tree.rule),
        "jetspec_beta": tree.beta,
        "jetspec_g0": tree.g0,
        "jetspec_keep_spine": int(tree.keep_spine),
    }


def tree_from_numbers(given: Mapping[str, float]) -> TreeConfig:
    """Read what ``tree_numbers`` wrote. Raises ConfigError, also for a key that is missing."""
    try:
        budget = int(given["jetspec_budget"])
        return TreeConfig(
            rule=TREE_RULES[int(given["jetspec_rule"])], width=int(given["jetspec_width"]), budget=budget or None,
            beta=float(given["jetspec_beta"]), g0=float(given["jetspec_g0"]),
            keep_spine=bool(given["jetspec_keep_spine"]),
        )  # fmt: skip
    except LookupError as error:
        raise ConfigError(f"tree: {error} is missing or unknown") from error
