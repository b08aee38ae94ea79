"""A slow, obvious forward in float64 with a dense mask: decides "logic or kernel" when the fast one is doubted.

Shares nothing with the fast forward but the configuration and the checkpoint's tensors: no caches, no fused or
reordered weights, no tree code; who sees whom is an argument. Its parts are functions, so that one operation of the
fast forward can be held against its own slow twin. For tests and diagnosis.
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
    x = weights["embed_tokens.weight"][token_ids].double()
    angles = rotary_angles(config, positions)
    states = []
    for layer in range(config.num_layers):
        own = layer_weights(weights, layer)
        window = config.sliding_windows[layer]
        near = sees if window is None else sees & (positions[None, :] > positions[:, None] - window)
        q, k, v = project(config, own, x)
        x = finish(config, own, x, mix(rotate(q, angles), rotate(k, angles), v, near))
        states.append(x)
    return head_logits(config, weights, x), states


def rotary_angles(config: DecoderConfig, positions: Tensor) -> Tensor:
    """Return (T, head_dim / 2) float64 radians for (T,) positions."""
    return positions[:, None].double() * rotary_frequencies(config).double()


def layer_weights(weights: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """Return one layer's tensors in float64, names without their prefix: no more than a layer is held twice."""
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): tensor.double() for name, tensor in weights.items() if name.startswith(prefix)}


def project(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q (H, T, head_dim) and k, v (KV heads, T, head_dim) of the states (T, E) before a layer, not rotated."""
    x = _norm(x, own["input_layernorm.weight"], config.rms_norm_eps)

    def one(name: str) -> Tensor:
        made = x @ own[f"self_attn.{name}_proj.weight"].T + own.get(f"self_attn.{name}_proj.bias", 0.0)
        return made.view(len(x), -1, config.head_dim).transpose(0, 1)

    q, k, v = (one(name) for name in "qkv")
    if config.has_qk_norm:
        q = _norm(q, own["self_attn.q_norm.weight"], config.rms_norm_eps)
        k = _norm(k, own["self_attn.k_norm.weight"], config.rms_norm_eps)
    return q, k, v


def mix(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """Return attention's result (T, H * head_dim).

    Args:
        q: (H, T, head_dim), rotated.
        k: (KV heads, S, head_dim), rotated.
        v: (KV heads, S, head_dim).
        sees: (T, S) bool.
    """
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    mixed = torch.softmax(scores.masked_fill(~sees, -math.inf), -1) @ v
    return mixed.transpose(0, 1).reshape(q.shape[1], -1)


def finish(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor, mixed: Tensor) -> Tensor:
    """Return the states (T, E) after a layer, of those before it and of attention's result."""
    x = x + mixed @ own["self_attn.o_proj.weight"].T + own.get("self_attn.o_proj.bias", 0.0)
    normed = _norm(x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
    gate, up = normed @ own["mlp.gate_proj.weight"].T, normed @ own["mlp.up_proj.weight"].T
    return x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T


def head_logits(config: DecoderConfig, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return (T, V) float64 of the states (T, E) after the last layer."""
    head = weights.get("lm_head.weight", weights["embed_tokens.weight"])
    return _norm(x, weights["norm.weight"].double(), config.rms_norm_eps) @ head.double().T


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Return (..., T, head_dim) turned by (T, head_dim / 2) radians, the two halves of a head as pairs."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain
