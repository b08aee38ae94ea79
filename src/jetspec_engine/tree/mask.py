"""Who sees whom in a verify: every node sees itself and its ancestors, and nothing else of the tree.

The committed prefix, which all nodes see, is no part of these masks. A parent must be a lower index, or -1 for none:
``DraftTree.validate`` is where bad ones are refused.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def positions(length: Any, depths: Any) -> Any:
    """Return the nodes' absolute positions: context length + depth, never the node's index.

    Siblings share a position. A chain cannot tell the two apart, which is how that mistake stays hidden.

    Args:
        length: committed tokens, a number or an array that broadcasts against ``depths``.
        depths: (..., N) numpy array or tensor.

    Returns:
        As ``depths``.
    """
    return length + depths


def ancestor_mask(parents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (N, N) bool: row i sees column j exactly when j is i or one of its ancestors.

    Args:
        parents: (N,) parent indices.
    """
    rows: list[int] = []  # bit j of a row is column j
    for node, parent in enumerate(parents.tolist()):
        rows.append((rows[parent] if parent >= 0 else 0) | 1 << node)
    count = len(rows)
    packed = b"".join([row.to_bytes(-(-count // 8), "little") for row in rows])
    flat = np.frombuffer(packed, dtype=np.uint8).reshape(count, -1)
    return np.unpackbits(flat, axis=1, count=count, bitorder="little").view(np.bool_)


def ancestor_mask_batched(parents: Tensor, max_depth: int) -> Tensor:
    """Return the masks of a batch of trees of one size, by doubling the reach: 1, 2, 4, ... generations a step.

    Args:
        parents: (B, N) int64 on any device, -1 where there is no parent (the root, and padded nodes, which thus see
            and are seen by nobody else).
        max_depth: no node is deeper; the number of steps depends on it alone, so shapes and kernels are fixed.

    Returns:
        (B, N, N) bool on the same device. No host sync.
    """
    batch, count = parents.shape
    itself = torch.arange(count, device=parents.device).expand(batch, count)
    jump = torch.where(parents < 0, itself, parents)
    columns = torch.arange(count, device=parents.device)
    sees = (columns == itself.unsqueeze(-1)) | (columns == jump.unsqueeze(-1))
    reach = 1
    while reach < max_depth:
        jump = jump.gather(1, jump)
        sees = sees | sees.gather(1, jump.unsqueeze(-1).expand(batch, count, count))
        reach *= 2
    return sees
