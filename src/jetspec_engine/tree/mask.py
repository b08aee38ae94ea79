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


def ancestor_words(parents: NDArray[np.int64], bits: int = 64) -> NDArray[Any]:
    """Return the mask as bits: node j is bit ``j % bits`` of word ``j // bits`` of the row.

    Args:
        parents: (N,) parent indices.
        bits: 32 or 64 a word.

    Returns:
        (N, ceil(N / bits)) int32 or int64.
    """
    rows: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        rows.append((rows[parent] if parent >= 0 else 0) | 1 << node)
    num_bytes = -(-len(rows) // bits) * bits // 8
    packed = b"".join([row.to_bytes(num_bytes, "little") for row in rows])
    words = np.frombuffer(bytearray(packed), dtype="<i8" if bits == 64 else "<i4")
    return words.reshape(len(rows), -1)


def ancestor_mask(parents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (N, N) bool: row i sees column j exactly when j is i or one of its ancestors.

    Args:
        parents: (N,) parent indices.
    """
    count = len(parents)
    flat = ancestor_words(parents).view(np.uint8)
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


def pack_words(mask: Tensor, bits: int = 64) -> Tensor:
    """Return boolean masks as bit words, laid out as ``ancestor_words`` does.

    Args:
        mask: (..., N, M) bool on any device.
        bits: 32 or 64 a word.

    Returns:
        (..., N, ceil(M / bits)) int32 or int64 on the same device. No host sync.
    """
    count = mask.shape[-1]
    num_words = -(-count // bits)
    padded = torch.nn.functional.pad(mask, (0, num_words * bits - count))
    grouped = padded.reshape(*mask.shape[:-1], num_words, bits).long()
    # Bit 63 shifts into the sign, as it should; the sum of distinct powers never carries.
    words = (grouped << torch.arange(bits, device=mask.device)).sum(dim=-1)
    if bits == 64:
        return words
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()
