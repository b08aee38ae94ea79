"""A slow, obvious forward in float64 with a dense mask: decides "logic or kernel" when the fast one is doubted.

Shares nothing with the fast forward but the configuration and the checkpoint's tensors: no caches, no fused or
reordered weights, no tree code; who sees whom is an argument. For tests and diagnosis.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.rotary import rotary_frequencies


def reference_forward(
    config: DecoderConfig, weights: Mapping[str, Tensor], token_ids: Tensor, positions: Tensor, sees: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Run the target over rows that see each other as told.

    Args:
        config: of the target.
        weights: as ``load_weights`` returns them.
        token_ids: (T,) int64.
        positions: (T,) int64 absolute positions.
        sees: (T, T) bool; row i attends to row j. Sliding windows are applied on top, by position.

    Returns:
        (T, V) float64 logits, and the (T, E) float64 states after each layer.
    """
    exact = {name: tensor.double() for name, tensor in weights.items()}
    x = exact["embed_tokens.weight"][token_ids]
    angles = positions[:, None].double() * rotary_frequencies(config).double()
    states = []
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        own = {name.removeprefix(prefix): tensor for name, tensor in exact.items() if name.startswith(prefix)}
        window = config.sliding_windows[layer]
        near = sees if window is None else sees & (positions[None, :] > positions[:, None] - window)
        x = x + _attention(config, own, _norm(x, own["input_layernorm.weight"], config.rms_norm_eps), angles, near)
        normed = _norm(x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate, up = normed @ own["mlp.gate_proj.weight"].T, normed @ own["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
        states.append(x)
    head = exact.get("lm_head.weight", exact["embed_tokens.weight"])
    return _norm(x, exact["norm.weight"], config.rms_norm_eps) @ head.T, states


def _attention(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor, angles: Tensor, sees: Tensor) -> Tensor:
    def project(name: str, bias: str) -> Tensor:
        made = x @ own[f"self_attn.{name}_proj.weight"].T
        made = made + own[bias] if bias in own else made
        return made.view(len(x), -1, config.head_dim).transpose(0, 1)

    q, k, v = (project(name, f"self_attn.{name}_proj.bias") for name in "qkv")
    if config.has_qk_norm:
        q = _norm(q, own["self_attn.q_norm.weight"], config.rms_norm_eps)
        k = _norm(k, own["self_attn.k_norm.weight"], config.rms_norm_eps)
    group = config.num_heads // config.num_kv_heads
    k, v = _rotate(k, angles).repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = _rotate(q, angles) @ k.transpose(1, 2) / math.sqrt(config.head_dim)
    mixed = torch.softmax(scores.masked_fill(~sees, -math.inf), -1) @ v
    made = mixed.transpose(0, 1).reshape(len(x), -1) @ own["self_attn.o_proj.weight"].T
    return made + own["self_attn.o_proj.bias"] if "self_attn.o_proj.bias" in own else made


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain
