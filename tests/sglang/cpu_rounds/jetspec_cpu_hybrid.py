"""What stands between a CPU and a round of a hybrid target: patched for tests, beside ``jetspec_cpu_rounds``.

SGLang keeps the states of drafts on "cuda", commits them with Triton and normalises a layer's output so; here they are
tensors of the CPU. The pools, their slots and the scheduler's hold on them stay the wheel's.
"""

import importlib
import os

import torch


def commit(caches, slots, steps, track_slots, track_steps):
    """Copy the kept state of each request's step to its slot, as SGLang's scatter does."""
    assert track_slots is None
    assert track_steps is None
    for request, (slot, step) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
        if slot >= 0 and step >= 0:
            caches.temporal[:, slot] = caches.intermediate_ssm[:, request, step]
            caches.conv[0][:, slot] = caches.intermediate_conv_window[0][:, request, step]


def seed_fault(name, hybrid):
    """Put a fault into the rounds: a test that cannot see it is no test."""
    if name == "uncommitted":
        hybrid.scatter_mamba_states_after_mtp_verify = lambda *_: None
    elif name == "previous":
        from jetspec_engine.sglang_backend.recurrent import round as recurrent_round

        right = recurrent_round.delta_paths_reference

        def from_the_previous_node(*given, path, depths, **named):
            chain = torch.arange(path.shape[1], device=path.device)
            wrong = torch.where(chain > 0, chain - 1, 0).reshape(1, -1, 1).expand_as(path).contiguous()
            return right(*given, path=wrong, depths=depths, **named)

        recurrent_round.delta_paths_reference = from_the_previous_node
    else:
        assert not name, name


def normalise(layer, x, z=None):
    """RMSNorm of a gated-delta layer's heads, gated by SiLU."""
    rows = x.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + layer.eps) * layer.weight.float()
    return (rows * torch.nn.functional.silu(z.float())).to(x.dtype)


def activate():
    """Patch the wheel."""
    mamba = importlib.import_module("sgl_kernel.mamba")  # the package answers for every other name
    for name in (name for name in dir(mamba) if name.endswith("_cpu")):
        setattr(torch.ops.sgl_kernel, name, getattr(mamba, name))
    import sglang.srt.layers.attention.hybrid_linear_attn_backend as hybrid
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.mem_cache.memory_pool import MambaPool

    hybrid.scatter_mamba_states_after_mtp_verify = commit
    seed_fault(os.environ.get("CPU_ROUNDS_FAULT", ""), hybrid)
    layernorm_gated.RMSNorm.forward = normalise
    make, zeros = MambaPool.__init__, torch.zeros

    def on_this_device(*given, **named):
        return zeros(*given, **{**named, "device": "cpu"})

    def make_here(self, *given, **named):
        torch.zeros = on_this_device
        try:
            make(self, *given, **named)
        finally:
            torch.zeros = zeros

    MambaPool.__init__ = make_here
