"""Verify attention over a request table in float32: the slow twin of the kernels, as the tree worker stages things.

A node's keys are the committed prefix, its ancestors from the root on, and itself; key j lies in slot ``table[r, j]``
and node n in ``table[r, prefix + n]``, so one table serves both. A key's place in the list is its position, which is
what a sliding window is cut by. Blocks of keys are counted from the list's first key: a row's bits depend on its list
only. Knows no engine; ``table_attention_reference`` is the kernel's slow twin.
"""

import torch
from torch import Tensor


def table_attention_reference(
    query: Tensor, keys: Tensor, values: Tensor, *, table: Tensor, prefix_lens: Tensor, path: Tensor, depths: Tensor,
    scale: float, window: int,
) -> Tensor:  # fmt: skip
    """Attend in float32, one node at a time.

    Args:
        query: (R, N, H, F).
        keys, values: (S, K, F); H is a multiple of K.
        table: (>= R, T) int, see the module.
        prefix_lens: (>= R,) int.
        path: (>= R, >= N, P) int node numbers; a node's ancestors by depth, itself last.
        depths: (>= R, >= N) int, so ``depths + 1`` entries of a node's path are keys.
        scale: of the scores.
        window: keys before a node that it still sees, as SGLang counts them (itself not included); -1 for all.

    Returns:
        (R, N, H, F) in the query's dtype. Syncs with the host at every node.
    """
    group = query.shape[2] // keys.shape[1]
    out = torch.empty_like(query)
    for request in range(query.shape[0]):
        prefix = int(prefix_lens[request])
        row = table[request].long()
        own_slots, node_depths = row[prefix + path[request].long()], depths[request].tolist()
        for node in range(query.shape[1]):
            slots = torch.cat([row[:prefix], own_slots[node, : node_depths[node] + 1]])
            if window >= 0:
                slots = slots[max(0, len(slots) - 1 - window) :]
            key = keys[slots].float().repeat_interleave(group, dim=1)
            value = values[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hf,shf->hs", query[request, node].float(), key) * scale
            out[request, node] = torch.einsum("hs,shf->hf", scores.softmax(dim=-1), value).to(query.dtype)
    return out
