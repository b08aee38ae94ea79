"""The tree as it is set now, on the device: a captured draft graph reads these tensors, so settings switch without a
new capture. Written by the scheduler's thread, applied at the start of a round on the stream the round runs on.

Knows which settings are possible; nothing of models and forwards.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.args import TreeSettings

BUILT_RULES = ("best_first",)


class TreeSwitch:
    """The current tree of one worker.

    Args:
        settings: the tree at start and what can be switched to.
        depth: D of the head.
        device: of the tensors.

    Attributes:
        captured: verify rows that graphs are captured for, ascending, the chain's D + 1 among them.
        width, budget: () int64. keep_spine: () bool.
    """

    width: Tensor
    budget: Tensor
    keep_spine: Tensor

    def __init__(self, settings: TreeSettings, depth: int, device: Any) -> None:
        self._settings, self._depth = settings, depth
        self.captured = captured_rows(settings, depth)
        self._host = {
            "width": torch.ones((), dtype=torch.int64), "budget": torch.ones((), dtype=torch.int64),
            "keep_spine": torch.zeros((), dtype=torch.bool),
        }  # fmt: skip
        for name, value in self._host.items():
            setattr(self, name, value.to(device, copy=True))
        self._applied: tuple[Any, ...] = ()
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
            ConfigError: wider or larger than the server was started for, or a rule that is not built on the device.
        """
        check_tree(tree, self._settings, self._depth)
        self._tree = tree

    def apply(self, *, is_linear: bool) -> None:
        """Write what has changed since the last round to the device, in stream order. No host sync.

        Args:
            is_linear: this round drafts a chain, whatever the tree.
        """
        tree = LINEAR if is_linear else self._tree
        values = (tree.width, tree.resolve_budget(self._depth), tree.keep_spine)
        if values == self._applied:
            return
        for name, value in zip(self._host, values, strict=True):
            # A fresh host tensor: the copy of the one before may still be under way.
            host = torch.tensor(value, dtype=self._host[name].dtype)
            self._host[name] = host.pin_memory() if self.width.is_cuda else host
            getattr(self, name).copy_(self._host[name], non_blocking=True)
        self._applied = values


def captured_rows(settings: TreeSettings, depth: int) -> tuple[int, ...]:
    """Return the numbers of verify rows to capture graphs for, ascending; the chain is always one."""
    own = {} if settings.max_width == 1 else {settings.tree.resolve_budget(depth), *settings.budgets}
    return tuple(sorted({depth + 1, *own}))


def check_tree(tree: TreeConfig, settings: TreeSettings, depth: int) -> None:
    """Raise ConfigError, naming the setting, for a tree that a started server cannot switch to."""
    if tree.rule not in BUILT_RULES:
        raise ConfigError(f"tree.rule: {tree.rule}, sglang builds {', '.join(BUILT_RULES)} trees only")
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
        "jetspec_rule": RULE_NUMBERS[tree.rule],
        "jetspec_beta": tree.beta,
        "jetspec_g0": tree.g0,
        "jetspec_keep_spine": int(tree.keep_spine),
    }


def tree_from_numbers(given: Mapping[str, float]) -> TreeConfig:
    """Read what ``tree_numbers`` wrote. Raises ConfigError, also for a key that is missing."""
    rules = {number: rule for rule, number in RULE_NUMBERS.items()}
    try:
        budget = int(given["jetspec_budget"])
        return TreeConfig(
            rule=rules[int(given["jetspec_rule"])], width=int(given["jetspec_width"]), budget=budget or None,
            beta=float(given["jetspec_beta"]), g0=float(given["jetspec_g0"]),
            keep_spine=bool(given["jetspec_keep_spine"]),
        )  # fmt: skip
    except KeyError as error:
        raise ConfigError(f"tree: {error} is missing or unknown") from error


RULE_NUMBERS = {"best_first": 0, "top2gap": 1, "accum_logp": 2}
