"""Who comes before whom among the rows of one forward: levels of equal depth, and each row's last predecessors.

Knows trees and lengths, no state and no tensor of a model. One plan serves every layer of a forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jetspec_engine.protocol import VerifyItem


@dataclass(frozen=True, kw_only=True)
class Level:
    """The rows of one depth, of all items together.

    Attributes:
        rows: (m,) int64 indices into the forward's rows.
        parents: (m,) int64, each row's parent as a place in the level above; for roots the item's index. None when
            row i's parent is in place i and every one of the level above has one child here.
        ends: (item, place) of chains whose last row is here.
    """

    rows: Tensor
    parents: Tensor | None
    ends: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class ScanPlan:
    """The order of one forward.

    Attributes:
        levels: by depth.
        before: (n, num_before) int64, for each row its predecessors, oldest first, as indices into [each item's kept
            rows, item by item ; the forward's rows].
    """

    levels: tuple[Level, ...]
    before: Tensor


def make_plan(items: Sequence[VerifyItem], num_before: int, device: torch.device) -> ScanPlan:
    """Plan a forward.

    Args:
        items: in the forward's order of rows.
        num_before: predecessors a row's convolution needs; each item keeps that many committed rows.
        device: of the indices.
    """
    first_rows = np.cumsum([0, *(item.tree.num_nodes for item in items)])
    own = [np.where(item.tree.parents < 0, -1, item.tree.parents + first_rows[i]) for i, item in enumerate(items)]
    parents = np.concatenate(own)
    depths = np.concatenate([item.tree.depths for item in items])
    owners = np.repeat(np.arange(len(items)), np.diff(first_rows))
    levels = []
    places = np.zeros(len(depths), dtype=np.int64)
    num_above = len(items)
    for depth in range(int(depths.max()) + 1):
        rows = np.nonzero(depths == depth)[0]
        places[rows] = np.arange(len(rows))
        above = owners[rows] if depth == 0 else places[parents[rows]]
        is_straight = len(rows) == num_above and bool((above == np.arange(num_above)).all())
        ends = [
            (int(owners[row]), int(places[row]))
            for row in rows
            if items[owners[row]].tree.is_chain and row + 1 == first_rows[owners[row] + 1]
        ]
        levels.append(
            Level(
                rows=torch.from_numpy(rows).to(device),
                parents=None if is_straight else torch.from_numpy(above).to(device),
                ends=tuple(ends),
            )
        )
        num_above = len(rows)
    before = _predecessors(parents, owners, num_before, len(items))
    return ScanPlan(levels=tuple(levels), before=torch.from_numpy(before).to(device))


def _predecessors(parents: np.ndarray, owners: np.ndarray, num_before: int, num_items: int) -> np.ndarray:
    """Walk up from every row; above an item's root lie its kept rows, the newest first."""
    first_row = num_items * num_before
    before = np.empty((len(parents), num_before), dtype=np.int64)
    # Each row's way up so far: a row's index, or -1 - i for the i-th newest kept row.
    walker = np.arange(len(parents))
    for step in range(1, num_before + 1):
        inside = walker >= 0
        walker = np.where(inside, parents[np.maximum(walker, 0)], walker - 1)
        newest = owners * num_before + num_before
        before[:, num_before - step] = np.where(walker >= 0, first_row + walker, newest + walker)
    return before
