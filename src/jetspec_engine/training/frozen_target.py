"""The frozen target as distillation runs it: whole right-padded sequences, or one token a row on a static cache.

One dense decoder family (Llama, Qwen2, Qwen3) by the names in its weights. Knows nothing of text or of the head.
The serving engine has its own forward; this one is shaped for batches of thousands of rows.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.training.kernels.decode_step import attend_one, rotate_and_store


class _Layer(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


def rope_tables(num_positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each (num_positions, head_dim) float32, halves repeated (rotate-half order)."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32, device=device), inverse)
    both = torch.cat([angles, angles], -1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to (..., head_dim); cos and sin broadcast against x."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _project(h: Tensor, layer: _Layer, head_dim: int, num_kv: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return unrotated queries, keys and values, (..., heads, head_dim)."""
    x = F.linear(_norm(h, layer.input_norm, eps), layer.qkv, layer.qkv_bias)
    x = x.view(*x.shape[:-1], -1, head_dim)
    q, k, v = torch.split(x, [x.shape[-2] - 2 * num_kv, num_kv, num_kv], -2)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, eps), _norm(k, layer.k_norm, eps)
    return q, k, v


def _rotate_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(q, cos, sin), rotate(k, cos, sin)


def _feed_forward(h: Tensor, mixed: Tensor, layer: _Layer, eps: float) -> Tensor:
    h = h + F.linear(mixed, layer.output)
    gate, up = F.linear(_norm(h, layer.post_norm, eps), layer.gate_up).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, layer.down)


class StaticCache:
    """Keys and values of many rows at fixed addresses, so that one CUDA graph serves every step.

    Layer tensors are (rows * num_kv_heads, length, head_dim), contiguous.
    """

    def __init__(self, config: DecoderConfig, num_rows: int, length: int, device: torch.device, dtype: torch.dtype):
        size = (num_rows * config.num_kv_heads, length, config.head_dim)
        self.length = length
        self.keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self.values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(config.num_layers)]


class FrozenTarget:
    """The target's weights and its two forwards. Nothing here has a gradient."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: DecoderConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_positions: int = 2048,
        is_compiled: bool = False,
    ) -> None:
        self.config, self.device, self.dtype = config, device, dtype

        def get(name: str) -> Tensor:
            return weights[name].to(device=device, dtype=dtype).contiguous()

        self.embedding = get("embed_tokens.weight")
        self.lm_head = get("lm_head.weight") if "lm_head.weight" in weights else self.embedding
        self.final_norm = get("norm.weight")
        self.layers = [self._layer(weights, f"layers.{i}.") for i in range(config.num_layers)]
        cos, sin = rope_tables(max_positions, config.head_dim, config.rope_theta, device)
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)
        fuse: Any = torch.compile if is_compiled else lambda function: function
        self._project, self._rotate, self._feed_forward = fuse(_project), fuse(_rotate_both), fuse(_feed_forward)

    def eager(self) -> "FrozenTarget":
        """Return the same target without compiled parts, for shapes too rare to compile for."""
        twin = copy.copy(self)
        twin._project, twin._rotate, twin._feed_forward = _project, _rotate_both, _feed_forward
        return twin

    def _layer(self, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        def get(*names: str) -> Tensor:
            joined = torch.cat([weights[prefix + name] for name in names])
            return joined.to(device=self.device, dtype=self.dtype).contiguous()

        def optional(*names: str) -> Tensor | None:
            return get(*names) if prefix + names[0] in weights else None

        attn, mlp = "self_attn.", "mlp."
        return _Layer(
            input_norm=get("input_layernorm.weight"),
            qkv=get(*(f"{attn}{x}_proj.weight" for x in "qkv")),
            qkv_bias=optional(*(f"{attn}{x}_proj.bias" for x in "qkv")),
            q_norm=optional(attn + "q_norm.weight"),
            k_norm=optional(attn + "k_norm.weight"),
            output=get(attn + "o_proj.weight"),
            post_norm=get("post_attention_layernorm.weight"),
            gate_up=get(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            down=get(mlp + "down_proj.weight"),
        )

    @torch.no_grad()
    def read(self, tokens: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Run whole sequences under the causal mask.

        Args:
            tokens: (B, T) int64, right-padded with any valid id.
            taps: 0-based layers whose output states are wanted, in the order they are to be concatenated.

        Returns:
            The tapped states (B, T, len(taps) * E), and the normed last states (B, T, E): ``logits`` of position t
            are over the token at t + 1.
        """
        c, length = self.config, tokens.shape[1]
        h = self.embedding[tokens]
        cos, sin = self.cos[:length, None], self.sin[:length, None]
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(h, layer, c.head_dim, c.num_kv_heads, c.rms_norm_eps)
            q, k = self._rotate(q, k, cos, sin)
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
            )
            h = self._feed_forward(h, mixed.transpose(1, 2).flatten(2), layer, c.rms_norm_eps)
            if index in taps:
                tapped[index] = h
        states = torch.cat([tapped[i] for i in taps], -1) if taps else h[..., :0]
        return states, _norm(h, self.final_norm, c.rms_norm_eps)

    @torch.no_grad()
    def decode(self, tokens: Tensor, positions: Tensor, cache: StaticCache) -> Tensor:
        """Run one token a row, store its keys and values, and return the logits (rows, V).

        Args:
            tokens, positions: (rows,) int64; the row's cache holds every position below its own.
        """
        c = self.config
        h = self.embedding[tokens]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            q, k, v = self._project(h, layer, c.head_dim, c.num_kv_heads, c.rms_norm_eps)
            query = rotate_and_store((q, k, v), (self.cos, self.sin), positions, (keys, values))
            mixed = attend_one(query, keys, values, positions)
            h = self._feed_forward(h, mixed.flatten(1), layer, c.rms_norm_eps)
        return self.logits(_norm(h, self.final_norm, c.rms_norm_eps), exact=True)

    def logits(self, states: Tensor, *, exact: bool = False) -> Tensor:
        """Return the LM head's logits of normed states (rows, E) -> (rows, V).

        Args:
            exact: float32 logits, so that the choice between near tokens is not left to bfloat16's rounding; else
                the target's dtype.
        """
        if exact and self.dtype != torch.float32:
            if states.is_cuda:
                return torch.mm(states, self.lm_head.t(), out_dtype=torch.float32)
            return states.float() @ self.lm_head.float().t()
        return states @ self.lm_head.t()
