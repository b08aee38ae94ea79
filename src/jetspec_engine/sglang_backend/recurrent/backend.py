"""SGLang's backend of gated-delta layers, taught to verify trees; everything but a verify stays what SGLang ships.

Its own tree verify is not used: it takes child and sibling links, unrolls all nodes in one program, and reads a
parent's state back from memory. Ours has the paths. What is committed and where states are kept stays SGLang's: its
``update_mamba_state_after_mtp_verify`` copies the kept state of the node it is told.
"""

from typing import Any

from torch import Tensor

from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.recurrent.round import LayerStates, RecurrentRound
from jetspec_engine.sglang_backend.round_state import RoundState
from jetspec_engine.sglang_backend.verify_backend import teach_trees


class RecurrentVerify:
    """Mixed in before the backend's own class."""

    jetspec_recurrent: RecurrentRound
    req_to_token_pool: Any
    forward_metadata: Any

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make nothing: the target's decode graphs are verifies, whose tensors are the round's."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepare an eager forward."""
        if forward_batch.forward_mode.is_target_verify():
            real = forward_batch._original_batch_size
            self._stage(forward_batch, forward_batch.batch_size if real is None else real)
        else:
            super().init_forward_metadata(forward_batch)  # type: ignore[misc]

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Prepare a capture or a replay, outside the graph."""
        if forward_batch.forward_mode.is_target_verify():
            padding = 0 if in_capture else getattr(forward_batch, "num_padding", None) or 0
            self._stage(forward_batch, forward_batch.batch_size - int(padding))
        else:
            super().init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)  # type: ignore[misc]

    def forward_extend(self, layer: Any, forward_batch: Any, mixed_qkv: Any, a: Any, b: Any, **kwargs: Any) -> Tensor:
        """Run a layer on a prefill or on the nodes of a verify; returns (1, rows, value heads, value width)."""
        if not forward_batch.forward_mode.is_target_verify():
            extended: Tensor = super().forward_extend(  # type: ignore[misc]
                layer=layer, forward_batch=forward_batch, mixed_qkv=mixed_qkv, a=a, b=b, **kwargs
            )
            return extended
        cache, rows = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id), forward_batch.spec_info.draft_token_num
        states = LayerStates(
            conv=cache.conv[0], memory=cache.temporal, kept_conv=cache.intermediate_conv_window[0],
            kept_memory=cache.intermediate_ssm,
        )  # fmt: skip
        inputs = self.jetspec_recurrent.convolve(mixed_qkv, layer, states, rows)
        heads = layer.num_v_heads
        read = self.jetspec_recurrent.remember(inputs, a.view(-1, heads), b.view(-1, heads), layer, states, rows)
        return read.unsqueeze(0)

    def _stage(self, forward_batch: Any, num_real: int) -> None:
        from sglang.srt.layers.attention.mamba.mamba2_metadata import ForwardMetadata

        count, rows = forward_batch.batch_size, forward_batch.spec_info.draft_token_num
        slots = self.req_to_token_pool.get_mamba_indices(forward_batch.req_pool_indices)
        self.jetspec_recurrent.stage(slots, num_real, rows)
        self.forward_metadata = ForwardMetadata(
            query_start_loc=self.jetspec_recurrent.token_starts(count, rows),
            mamba_cache_indices=self.jetspec_recurrent.slots[:count],
        )


def attention_pool(pool: Any) -> Any:
    """Return the KV pool of a target's attention layers, which is all of it unless the target is a hybrid."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    return pool.full_kv_pool if isinstance(pool, HybridLinearKVPool) else pool


def teach_target(runner: Any, state: RoundState, *, has_kernels: bool) -> Any:
    """Return a target's attention backend that also verifies trees, recurrent layers included.

    Args:
        runner: SGLang's, of the target.
        state: where slots and trees are read from.
        has_kernels: as for ``RoundState``.

    Raises:
        ConfigError: linear attention of another kind, or states laid out otherwise than read here.
    """
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend

    backend, shared = runner.attn_backend, {"pool": runner.token_to_kv_pool, "requests": runner.req_to_token_pool}
    if not isinstance(backend, HybridLinearAttnBackend):
        return teach_trees(backend, state, **shared)
    full = teach_trees(backend.full_attn_backend, state, **shared)
    teach_recurrent(backend, full, RecurrentRound(state, runner.device, has_kernels=has_kernels))
    return backend


def teach_recurrent(hybrid: Any, full: Any, recurrent: RecurrentRound) -> None:
    """Make a hybrid backend verify trees, in place.

    Args:
        hybrid: SGLang's ``HybridLinearAttnBackend``.
        full: its backend of the attention layers, taught already.
        recurrent: where slots and paths are read from.

    Raises:
        ConfigError: linear attention of another kind, or states laid out otherwise than read here.
    """
    from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

    stock = hybrid.linear_attn_backend
    if type(stock) is not GDNAttnBackend:
        raise ConfigError(f"target: linear attention by {type(stock).__name__}, a tree needs GDNAttnBackend")
    _check_states(stock.req_to_token_pool)
    taught: Any = object.__new__(type(GDNAttnBackend.__name__, (RecurrentVerify, GDNAttnBackend), {}))
    taught.__dict__ = stock.__dict__
    taught.jetspec_recurrent = recurrent
    hybrid.full_attn_backend, hybrid.linear_attn_backend = full, taught
    hybrid.attn_backend_list = [full, taught]


def _check_states(pool: Any) -> None:
    """Refuse a pool whose states a tree's verify would read or keep wrongly."""
    caches = pool.get_speculative_mamba2_params_all_layers()
    if caches.intermediate_ssm is None:
        raise ConfigError("target: no room for the states of drafts", hint="leave --enable-linear-replayssm-spec out")
    windows = caches.intermediate_conv_window[0]
    if not windows.is_contiguous():  # overlapping windows are a chain's: siblings would write into each other's
        raise ConfigError("target: convolution windows of drafts overlap, a tree needs one of its own for each node")
    memory = caches.temporal
    if not memory[0, 0].is_contiguous():
        raise ConfigError("target: recurrent states in pieces, a tree needs each in one")
    width = memory.shape[-1]
    if width & (width - 1):
        raise ConfigError(f"target: linear attention with keys of {width}, a tree needs a power of two")
