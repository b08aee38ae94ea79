"""The target's attention backend, taught to verify trees: everything but a verify stays what SGLang ships.

``teach_trees`` makes of a backend one whose class has the same name and also knows trees, so whatever asks a backend
for its name, its type or an attribute is answered as before. A verify runs our own attention over the round's static
tensors, eager or inside a CUDA graph alike; the backend's own verify is never called.
"""

from typing import Any

import torch
from torch import Tensor

from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.round_state import RoundState

WITHOUT_TREES = "without trees it runs: --speculative-algorithm DFLASH"


class TreeVerify:
    """Mixed in before a backend's own class."""

    jetspec_state: RoundState
    jetspec_pool: Any
    jetspec_requests: Any

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make nothing: the target's decode graphs are verifies, whose tensors are the state's."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepare an eager forward."""
        if forward_batch.forward_mode.is_target_verify():
            self._stage(forward_batch)
        else:
            super().init_forward_metadata(forward_batch)  # type: ignore[misc]

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Prepare a capture or a replay, outside the graph."""
        if forward_batch.forward_mode.is_target_verify():
            self._stage(forward_batch)
        else:
            super().init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)  # type: ignore[misc]

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Nothing of a verify is prepared inside the graph."""
        if not forward_batch.forward_mode.is_target_verify():
            super().init_forward_metadata_in_graph(forward_batch)  # type: ignore[misc]

    def forward(  # noqa: PLR0917 SGLang's signature
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> Tensor:
        """Attend, writing the rows' keys and values first.

        Most of SGLang's backends come from here to ``forward_extend``. The one that joins a prefill's and a decode's
        backend does not: it would hand a verify to one of the two.
        """
        if forward_batch.forward_mode.is_target_verify():
            return self._verify(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        attended: Tensor = super().forward(  # type: ignore[misc]
            q, k, v, layer, forward_batch, save_kv_cache, **kwargs
        )
        return attended

    def forward_extend(  # noqa: PLR0917 SGLang's signature
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> Tensor:
        """Attend, where a hybrid target's backend asks for an attention layer."""
        if forward_batch.forward_mode.is_target_verify():
            return self._verify(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        attended: Tensor = super().forward_extend(  # type: ignore[misc]
            q, k, v, layer, forward_batch, save_kv_cache, **kwargs
        )
        return attended

    def _verify(  # noqa: PLR0917 SGLang's order
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool, **kwargs: Any
    ) -> Tensor:
        if any(value is not None for value in kwargs.values()):
            raise ConfigError(f"target: layer {layer.layer_id}: {', '.join(kwargs)}: not computed by a tree's verify")
        pool = self.jetspec_pool
        if k is not None and save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale)
        keys, values = pool.get_kv_buffer(layer.layer_id)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        rows = self.jetspec_state.attend(
            query, keys, values, forward_batch.out_cache_loc, scale=layer.scaling, window=layer.sliding_window_size
        )
        return rows.reshape(q.shape[0], -1)

    def _stage(self, forward_batch: Any) -> None:
        table, rows = self.jetspec_requests.req_to_token, forward_batch.spec_info.draft_token_num
        self.jetspec_state.stage(table, forward_batch.req_pool_indices, forward_batch.seq_lens, rows)


def teach_trees(backend: Any, state: RoundState, *, pool: Any, requests: Any) -> Any:
    """Return a target's backend that also verifies trees.

    Args:
        backend: any of SGLang's attention backends.
        state: where slots and trees are read from.
        pool: the target's KV pool.
        requests: SGLang's request table.

    Returns:
        An object with the very attributes of ``backend``, which must not be used beside it.
    """
    kind = type(backend)
    # The name is kept: SGLang decides by it whether a verify graph carries a mask of its own.
    taught_kind: Any = type(kind.__name__, (TreeVerify, kind), {})
    taught: Any = object.__new__(taught_kind)
    taught.__dict__ = backend.__dict__
    taught.jetspec_state, taught.jetspec_pool, taught.jetspec_requests = state, pool, requests
    return taught


def check_layers(model: torch.nn.Module, dtype: torch.dtype, pool: Any) -> tuple[int, int]:
    """Refuse a target whose attention our verify does not compute.

    Returns:
        Query heads of this rank and their width, the most of any layer.

    Raises:
        ConfigError: a KV cache of another dtype, a head size that is no power of two, or an attention variant.
    """
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if isinstance(pool, SWAKVPool):
        raise ConfigError(
            "target: windowed layers with a KV pool of their own, a tree's verify needs one pool for all layers",
            hint="--disable-hybrid-swa-memory",
        )
    kv_dtype = getattr(pool, "store_dtype", dtype)
    if kv_dtype != dtype:
        raise ConfigError(
            f"--kv-cache-dtype: {kv_dtype}, a tree's verify needs the model's {dtype}", hint="--kv-cache-dtype auto"
        )
    shapes = [(1, 16)]
    for name, layer in model.named_modules():
        if not isinstance(layer, RadixAttention):
            continue
        width = layer.qk_head_dim
        if layer.v_head_dim != width or width < 16 or width & (width - 1):
            raise ConfigError(
                f"target: {name}: heads of {width} and {layer.v_head_dim}, a tree needs a power of two from 16 on",
                hint=WITHOUT_TREES,
            )
        is_plain = not layer.logit_cap and not layer.is_cross_attention and not layer.use_irope
        if not is_plain or layer.attn_type != AttentionType.DECODER:
            raise ConfigError(
                f"target: {name}: an attention variant that a tree's verify does not compute", hint=WITHOUT_TREES
            )
        shapes.append((layer.tp_q_head_num, width))
    heads, widths = zip(*shapes, strict=True)
    return max(heads), max(widths)
