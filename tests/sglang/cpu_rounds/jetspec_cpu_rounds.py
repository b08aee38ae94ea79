"""Whole rounds of SGLang's DFLASH and JETSPEC workers on a CPU: a plugin for tests, found through its entry point.

Bypasses the refusals of a CPU and gives the torch_native backend a linear verify and a draft. Everything else is the
real wheel: scheduler, overlap, KV pool, request table, models.
"""

import contextlib
import dataclasses
import os

import torch


@contextlib.contextmanager
def _cuda_by_name(server_args):
    device = server_args.device
    server_args.device = "cuda"
    try:
        yield
    finally:
        server_args.device = device


def _attend(query, keys, values, mask, scale):
    group = query.shape[1] // keys.shape[1]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (keys, values))
    scores = torch.einsum("qhf,khf->hqk", query.float(), keys) * scale
    return torch.einsum("hqk,khf->qhf", scores.masked_fill(~mask, float("-inf")).softmax(-1), values)


def verify_extend(  # noqa: PLR0917 SGLang's signature
    original, self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs
):
    """A block of rows behind each prefix: causal, or open within the block for a bidirectional head."""
    if not forward_batch.forward_mode.is_target_verify():
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    from sglang.srt.layers.radix_attention import AttentionType

    if save_kv_cache:
        self.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
    keys, values = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
    count = forward_batch.batch_size
    query = q.view(count, -1, layer.tp_q_head_num, layer.qk_head_dim)
    rows = query.shape[1]
    own = forward_batch.out_cache_loc.view(count, rows)
    out = torch.empty_like(query)
    for request in range(count):
        prefix = int(forward_batch.seq_lens[request])
        row = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[request], :prefix]
        slots = torch.cat([row.long(), own[request]])
        at, position = torch.arange(len(slots)), prefix + torch.arange(rows).unsqueeze(1)
        mask = at <= position
        if layer.sliding_window_size >= 0:
            mask &= at >= position - layer.sliding_window_size
        if layer.attn_type == AttentionType.ENCODER_ONLY:
            mask = torch.ones_like(mask)
        out[request] = _attend(query[request], keys[slots], values[slots], mask, layer.scaling)
    return out.reshape(q.shape[0], -1)


def activate():
    """Patch what stands between a CPU and a round."""
    import sglang.srt.arg_groups.speculative_hook as hook
    import sglang.srt.speculative.draft_worker_common as common
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from jetspec_engine.sglang_backend import algorithm

    stock, check = hook._handle_dflash, algorithm.check_server

    def handle(server_args):
        server_args.speculative_draft_attention_backend = "torch_native"
        with _cuda_by_name(server_args):
            stock(server_args)

    hook._resolve_dflash_draft_attention_backend = lambda _: None
    hook._handle_dflash = algorithm._handle_dflash = handle
    common._SUPPORTED_DRAFT_BACKENDS = (*common._SUPPORTED_DRAFT_BACKENDS, "torch_native")
    algorithm.check_server = lambda facts: check(
        dataclasses.replace(facts, device="cuda", attention_backends=("triton",))
    )
    extend = TorchNativeAttnBackend.forward_extend
    TorchNativeAttnBackend.forward_extend = lambda self, *given, **named: verify_extend(extend, self, *given, **named)
    torch.Tensor.record_stream = lambda *_: None
    if os.environ.get("CPU_ROUNDS_HYBRID"):
        import jetspec_cpu_hybrid

        jetspec_cpu_hybrid.activate()
    if os.environ.get("CPU_ROUNDS_KERNELS"):  # in Triton's interpreter
        from jetspec_engine.sglang_backend import tree_worker

        tree_worker.can_run_kernels = lambda _: True
