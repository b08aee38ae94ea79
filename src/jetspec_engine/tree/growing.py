"""A tree under construction: plain lists that grow a node at a time and become a DraftTree once.

Knows no rule. Costs are negated cumulative log-probabilities, in float64, so that a min-heap pops the likeliest first
and every builder adds in the same order and gets the same bits.
"""

from itertools import takewhile

import numpy as np

from jetspec_engine.tree.record import DraftTree

LOWEST = float(np.finfo(np.float32).min)


class GrowingTree:
    """Nodes added so far, the root first; also the ranked candidates they come from."""

    __slots__ = ("costs", "depths", "ids", "logprobs", "parents", "spine_length", "spine_tip", "tokens")

    def __init__(self, anchor: int, ids: list[list[int]], logprobs: list[list[float]]) -> None:
        self.ids = ids
        self.logprobs = logprobs
        self.tokens = [anchor]
        self.parents = [-1]
        self.depths = [0]
        self.costs = [0.0]
        self.spine_length = 0
        self.spine_tip = -1

    def reserve_spine(self, most: int) -> int:
        """Promise the top-1 chain, up to ``most`` nodes below the root, and return how many nodes that is."""
        self.spine_length = min(most, sum(1 for _ in takewhile(bool, self.ids)))
        self.spine_tip = 0
        return self.spine_length

    def add(self, depth: int, parent: int, rank: int, cost: float) -> bool:
        """Append a node; return whether it is the next one of a reserved spine (and so already paid for)."""
        is_spine = parent == self.spine_tip  # of a node's children the likeliest comes first and moves the tip on
        if is_spine:
            self.spine_tip = len(self.tokens)
        self.tokens.append(self.ids[depth - 1][rank])
        self.parents.append(parent)
        self.depths.append(depth)
        self.costs.append(cost)
        return is_spine

    def finish(self) -> DraftTree:
        """Append what is missing of a reserved spine and return the tree."""
        while self.depths[self.spine_tip] < self.spine_length:
            depth = self.depths[self.spine_tip] + 1
            self.add(depth, self.spine_tip, 0, self.costs[self.spine_tip] - self.logprobs[depth - 1][0])
        totals = 0.0 - np.array(self.costs)  # not a negation, which would make the root's 0 a -0
        return DraftTree(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.parents, dtype=np.int64),
            np.array(self.depths, dtype=np.int64),
            np.maximum(totals, LOWEST).astype(np.float32),
        )
