"""Faults of recurrent states and experts: parents, convolutions, commits, prefixes, and the order of sums."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from jetspec_engine.embedded import delta_plan, delta_scan, delta_state
from jetspec_engine.models import expert_block
from jetspec_engine.selftest.mutants import MutantTable, Patch

TABLE = MutantTable()
HYBRID = "hybrid"


@TABLE.add("a node's recurrent state comes from the previous node, not from its parent", subject=HYBRID)
def wrong_state_parent() -> Sequence[Patch]:
    make_plan = delta_plan.make_plan

    def faulty(*args: Any) -> Any:
        plan = make_plan(*args)
        levels = [replace(level, parents=_of_the_one_before(level.parents)) for level in plan.levels]
        return replace(plan, levels=tuple(levels))

    return [(delta_scan, "make_plan", faulty)]


def _of_the_one_before(parents: Any) -> Any:
    return parents if parents is None else torch.cat((parents[:1], parents[:-1]))


@TABLE.add("a node is convolved with the nodes before it, not with its ancestors", subject=HYBRID)
def convolution_over_siblings() -> Sequence[Patch]:
    predecessors = delta_plan._predecessors

    def faulty(parents: Any, *rest: Any) -> Any:
        return predecessors(np.where(parents < 0, -1, np.arange(len(parents)) - 1), *rest)

    return [(delta_plan, "_predecessors", faulty)]


@TABLE.add("the convolution's last rows are not committed", subject=HYBRID)
def convolution_not_committed() -> Sequence[Patch]:
    commit = delta_state.DeltaState.commit

    def faulty(self: Any, region: Any, length: int, path: Any) -> None:
        kept = self._rounds[region.start].past.kept if length else None
        commit(self, region, length, path)
        if kept is not None and path:
            self._pasts[region.start] = replace(self._pasts[region.start], kept=kept)

    return [(delta_state.DeltaState, "commit", faulty)]


@TABLE.add("an accepted path's state is not committed", subject=HYBRID)
def state_not_committed() -> Sequence[Patch]:
    return [(delta_state, "_replay", lambda round_, path: round_.past.states)]


@TABLE.add("the state of a tree's last node is committed in the place of the accepted one", subject=HYBRID)
def state_of_last_node() -> Sequence[Patch]:
    replay = delta_state._replay

    def faulty(round_: Any, path: Any) -> Any:
        return replay(round_, [*path[:-1], len(round_.inputs[0].k) - 1])

    return [(delta_state, "_replay", faulty)]


@TABLE.add("the last accepted token enters the state twice", subject=HYBRID)
def state_committed_twice() -> Sequence[Patch]:
    replay = delta_state._replay
    return [(delta_state, "_replay", lambda round_, path: replay(round_, [*path, path[-1]]))]


@TABLE.add("a sequence begins with the state its region was left with", subject=HYBRID)
def state_not_reset() -> Sequence[Patch]:
    past = delta_state.DeltaState.past

    def faulty(self: Any, region: Any, length: int) -> Any:
        left = self._pasts.get(region.start)
        return replace(left, length=0) if length == 0 and left is not None else past(self, region, length)

    return [(delta_state.DeltaState, "past", faulty), (delta_state.DeltaState, "forget", lambda self, region: None)]


@TABLE.add("a cached state is reused at a length where it was not", subject=HYBRID)
def state_cut() -> Sequence[Patch]:
    def faulty(self: Any, source: Any, destination: Any, length: int) -> bool:
        self._pasts[destination.start] = replace(self._pasts[source.start], length=length)
        return True

    return [(delta_state.DeltaState, "copy", faulty)]


@TABLE.add("a token's experts are added in an order that depends on the number of rows", subject=HYBRID)
def experts_in_batch_order() -> Sequence[Patch]:
    choose = expert_block.choose_experts

    def faulty(logits: Any, count: int, **options: Any) -> Any:
        shares, ids = choose(logits, count, **options)
        return (shares.flip(1), ids.flip(1)) if len(logits) > 1 else (shares, ids)

    return [(expert_block, "choose_experts", faulty)]


@TABLE.add("a tree's tokens go to the experts of the root", subject=HYBRID)
def experts_of_another_row() -> Sequence[Patch]:
    choose = expert_block.choose_experts

    def faulty(logits: Any, count: int, **options: Any) -> Any:
        shares, ids = choose(logits, count, **options)
        return shares, ids[:1].expand_as(ids).contiguous()

    return [(expert_block, "choose_experts", faulty)]
