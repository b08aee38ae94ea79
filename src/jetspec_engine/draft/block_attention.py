"""Attention of a draft block over its context and itself.

Causality and sliding windows are decided here and nowhere else, from the head's configuration and the length the caller
gives: no cache is asked for its length, so no layer can see another layer's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.context_cache import ContextCache


class BlockAttention:
    """Attends with grouped query heads as plain matrix products over views of the cache.

    Args:
        config: heads, causality and windows.
        cache: committed keys and values; the block's rows are written behind them.
    """

    def __init__(self, config: HeadConfig, cache: ContextCache) -> None:
        self._cache = cache
        self._kv_heads = config.num_kv_heads
        self._group = config.num_heads // config.num_kv_heads
        self._windows = [config.window_of(layer) for layer in range(config.num_layers)]
        self._is_causal = config.is_causal
        # On a CPU oneDNN would keep half a megabyte of compiled bfloat16 product for every length of text.
        self._dtype = torch.promote_types(cache.keys.dtype, torch.float32) if cache.keys.is_cpu else cache.keys.dtype
        size = config.block_size
        hidden = torch.full((size, size), float("-inf"), dtype=self._dtype, device=cache.keys.device)
        self._later_rows = hidden.triu(1)
        self._all_hidden = hidden

    def attend(self, layer: int, start: int, length: int, block: Sequence[Tensor]) -> Tensor:
        """Return (R, H * head_dim) for the R rows of one sequence's block.

        Args:
            layer: index of the head's layer.
            start: first slot of the sequence's region.
            length: committed positions; row r stands at position ``length + r``.
            block: its queries (R, H, head_dim), scaled and rotated, head h reading key head ``h // (H / kv heads)``;
                its keys and values (R, kv heads, head_dim), written to slots ``start + length ..``.
        """
        q, k, v = block
        rows, _, head_dim = q.shape
        window = self._windows[layer]
        oldest = 0 if window is None else max(0, length - window + 1)
        begin, end = start + oldest, start + length + rows
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[end - rows : end] = k
        values[end - rows : end] = v
        grouped = q.view(rows, self._kv_heads, self._group, head_dim).permute(1, 2, 0, 3)
        flat = grouped.reshape(self._kv_heads, self._group * rows, head_dim).to(self._dtype)
        scores = torch.bmm(flat, keys[begin:end].to(self._dtype).permute(1, 2, 0))
        by_row = scores.view(self._kv_heads, self._group, rows, end - begin)
        if self._is_causal:
            by_row[..., end - begin - rows :] += self._later_rows[:rows, :rows]
        if window is not None:
            # Row 0 sees everything from ``oldest`` on; each later row loses one position more, once the window is full.
            room = max(0, window - 1 - length)
            by_row[..., :rows] += self._all_hidden[:rows, :rows].tril(-1 - room)
        attended = torch.bmm(scores.softmax(-1), values[begin:end].to(self._dtype).transpose(0, 1))
        by_head = attended.to(q.dtype).view(self._kv_heads, self._group, rows, head_dim)
        return by_head.permute(2, 0, 1, 3).reshape(rows, -1)
