"""A draft head's weights, fused and packed for many small forwards, and the arithmetic of its layers.

Knows nothing of caches, masks or sessions. The same data flow as ``head`` describes; the reference implementation to
compare with is ``reference``.
"""

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.draft.head import DraftHead, HeadLayer
from jetspec_engine.draft.linear import prepare_linear
from jetspec_engine.draft.rope import rotate


class PreparedLayer:
    """One layer: q, k and v in one linear, gate and up in another, the softmax scale inside the query norm."""

    def __init__(self, layer: HeadLayer, *, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        projections = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.qkv = prepare_linear(torch.cat(projections))
        self.out = prepare_linear(attention.o_proj.weight)
        self.gate_up = prepare_linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)))
        self.down = prepare_linear(mlp.down_proj.weight)
        self.input_norm = layer.input_layernorm.weight.detach()
        self.mlp_norm = layer.post_attention_layernorm.weight.detach()
        query_norm = attention.q_norm.weight.detach() * head_dim**-0.5
        key_norm = attention.k_norm.weight.detach()
        self.qk_norm = torch.cat((query_norm.expand(num_heads, -1), key_norm.expand(num_kv_heads, -1)))

    def queries_keys_values(self, x: Tensor, cos: Tensor, sin: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled queries (T, H, head_dim), keys and values (T, kv heads, head_dim) of block rows (T, E)."""
        normed = functional.rms_norm(x, x.shape[-1:], self.input_norm, eps)
        qkv = self.qkv(normed).view(x.shape[0], -1, self.head_dim)
        rotated = self.num_heads + self.num_kv_heads
        qk = functional.rms_norm(qkv[:, :rotated], (self.head_dim,), None, eps) * self.qk_norm
        qk = rotate(qk, cos, sin)
        return qk[:, : self.num_heads], qk[:, self.num_heads :], qkv[:, rotated:]

    def finish(self, x: Tensor, attended: Tensor, eps: float) -> Tensor:
        """Return the layer's output from its input (T, E) and the attention's (T, H * head_dim)."""
        x = x + self.out(attended)
        normed = functional.rms_norm(x, x.shape[-1:], self.mlp_norm, eps)
        gate, up = self.gate_up(normed).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class PreparedHead:
    """All layers, and the projection of target states to every layer's context keys and values at once.

    Args:
        head: source of the weights; not kept.
        device, dtype: where and in what the arithmetic is done.
    """

    def __init__(self, head: DraftHead, *, device: torch.device, dtype: torch.dtype) -> None:
        config = head.config
        with torch.device("meta"):
            weights = DraftHead(config)
        moved = {name: value.to(device=device, dtype=dtype) for name, value in head.state_dict().items()}
        weights.load_state_dict(moved, assign=True)
        self.eps = config.rms_norm_eps
        self.num_layers, self.num_kv_heads, self.head_dim = config.num_layers, config.num_kv_heads, config.head_dim
        layers = [layer for layer in weights.layers if isinstance(layer, HeadLayer)]
        shape = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        self.layers = [PreparedLayer(layer, **shape) for layer in layers]
        self.fc = prepare_linear(weights.fc.weight)
        self.hidden_norm = weights.hidden_norm.weight.detach()
        self.final_norm = weights.norm.weight.detach()
        keys = [layer.self_attn.k_proj.weight for layer in layers]
        values = [layer.self_attn.v_proj.weight for layer in layers]
        self.context_kv = prepare_linear(torch.cat(keys + values))
        # (L, 1, head_dim): the key norm of each layer, broadcast over its key heads.
        self.key_norms = torch.stack([layer.self_attn.k_norm.weight.detach() for layer in layers]).unsqueeze(1)

    def context_keys_values(self, tapped: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return (L, T, kv heads, head_dim) keys and values of (T, T_l * E) tapped states at the tables' positions."""
        features = functional.rms_norm(self.fc(tapped), self.hidden_norm.shape, self.hidden_norm, self.eps)
        both = self.context_kv(features).view(-1, 2, self.num_layers, self.num_kv_heads, self.head_dim)
        keys = functional.rms_norm(both[:, 0], (self.head_dim,), None, self.eps) * self.key_norms
        keys = rotate(keys, cos.unsqueeze(1), sin.unsqueeze(1))
        return keys.transpose(0, 1), both[:, 1].transpose(0, 1)
