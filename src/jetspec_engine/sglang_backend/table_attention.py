"""Verify attention over a request table: what ``list_attention`` computes, addressed as the tree worker stages it.

A node's keys are the committed prefix, its ancestors from the root on, and itself; key j lies in slot ``table[r, j]``
and node n in ``table[r, prefix + n]``, so one table serves both. A key's place in the list is its position, which is
what a sliding window is cut by. Blocks of keys are counted from the list's first key: a row's bits depend on its list
only. Knows no engine; ``table_attention_reference`` is the kernel's slow twin.
"""

from typing import Any

import torch
from torch import Tensor

NO_WINDOW = -1
KEY_BLOCK = 64
MIN_ROWS = 16  # smallest tile a tensor core multiplies


def table_attention_reference(
    query: Tensor, keys: Tensor, values: Tensor, *, table: Tensor, prefix_lens: Tensor, path: Tensor, depths: Tensor,
    scale: float, window: int = NO_WINDOW,
) -> Tensor:  # fmt: skip
    """Attend in float32, one node at a time. Arguments as ``attend_by_table``; syncs with the host at every node."""
    group = query.shape[2] // keys.shape[1]
    out = torch.empty_like(query)
    for request in range(query.shape[0]):
        prefix = int(prefix_lens[request])
        row = table[request].long()
        own_slots, node_depths = row[prefix + path[request]], depths[request].tolist()
        for node in range(query.shape[1]):
            slots = torch.cat([row[:prefix], own_slots[node, : node_depths[node] + 1]])
            if window >= 0:
                slots = slots[max(0, len(slots) - 1 - window) :]
            key = keys[slots].float().repeat_interleave(group, dim=1)
            value = values[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hf,shf->hs", query[request, node].float(), key) * scale
            out[request, node] = torch.einsum("hs,shf->hf", scores.softmax(dim=-1), value).to(query.dtype)
    return out


def attend_by_table(
    query: Tensor, keys: Tensor, values: Tensor, *, table: Tensor, prefix_lens: Tensor, path: Tensor, depths: Tensor,
    scale: float, window: int = NO_WINDOW,
) -> Tensor:  # fmt: skip
    """Attend to each node's key list.

    Args:
        query: (R, N, H, F) contiguous; F a power of two of at least 16.
        keys, values: (S, K, F) contiguous, of the query's dtype; H is a multiple of K.
        table: (>= R, T) int32, row-major; see the module.
        prefix_lens: (>= R,) int64.
        path: (>= R, >= N, P) int64 node numbers; a node's ancestors by depth, itself last. Any strides.
        depths: (>= R, >= N) int64, so ``depths + 1`` entries of a node's path are keys.
        scale: of the scores.
        window: keys before a node that it still sees, as SGLang counts them (itself not included); -1 for all.

    Returns:
        (R, N, H, F) in the query's dtype. No host sync; capturable.
    """
    if query.device.type == "cpu":
        return table_attention_reference(
            query, keys, values, table=table, prefix_lens=prefix_lens, path=path, depths=depths, scale=scale,
            window=window,
        )  # fmt: skip
    import triton

    from jetspec_engine.sglang_backend.table_kernel import attend_kernel

    requests, nodes, heads, width = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    out = torch.empty_like(query)
    arguments: tuple[Any, ...] = (
        query, keys, values, out, table, prefix_lens, path, depths, scale, window, nodes, heads, kv_heads,
        table.stride(0), path.stride(0), path.stride(1), depths.stride(0),
    )  # fmt: skip
    attend_kernel[(requests * nodes, kv_heads)](
        *arguments, GROUP=group, ROWS=max(MIN_ROWS, triton.next_power_of_2(group)), WIDTH=width, BLOCK=KEY_BLOCK
    )
    return out
