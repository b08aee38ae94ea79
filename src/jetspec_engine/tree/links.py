"""Child and sibling links of a batch of trees, in the form that verify and state kernels take them.

Knows nothing of tokens: it only restates the parents.
"""

import torch
from torch import Tensor

NO_NODE = -1


def sibling_links(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Return each node's first child and next sibling.

    Args:
        parents: (R, N) int64 on any device, -1 where there is no parent.

    Returns:
        first_child and next_sibling, both (R, N) int64 on the same device, -1 for none; the lowest index comes first,
        which in a built tree is the likeliest. No host sync.
    """
    count = parents.shape[1]
    column = torch.arange(count, device=parents.device)
    is_child = parents.unsqueeze(1) == column.unsqueeze(1)
    is_younger = (parents.unsqueeze(1) == parents.unsqueeze(2)) & (column > column.unsqueeze(1))
    is_younger &= parents.unsqueeze(2) >= 0
    return _first(is_child, column), _first(is_younger, column)


def _first(is_wanted: Tensor, column: Tensor) -> Tensor:
    """Index of the first True along the last axis, NO_NODE where there is none."""
    count = len(column)
    found = torch.where(is_wanted, column, count).amin(dim=-1)
    return torch.where(found == count, NO_NODE, found)
