"""The draft head as training runs it: many blocks of many conversations in one pass, over plain named tensors.

Parameters carry the public checkpoint's names, so that saving is renaming nothing. ``draft`` holds the module that
serves; both compute the same function (tested), this one shares each conversation's context among all its blocks.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.training.frozen_target import rope_tables, rotate
from jetspec_engine.training.kernels.block_attention import block_attention

Parameters = dict[str, Tensor]
Turns = tuple[Tensor, Tensor]
LAYER_WEIGHTS = (
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip


@dataclass(frozen=True)
class BlockGroup:
    """Blocks of one length: anchors (B, A) int64 and the positions of each block, the anchor's included."""

    anchors: Tensor
    num_positions: int


def new_parameters(config: HeadConfig, seed: int) -> Parameters:
    """Draw float32 parameters on the CPU; residual outputs start small, norms at one."""
    generator = torch.Generator().manual_seed(seed)
    E, HD, FF = config.hidden_size, config.head_dim, config.intermediate_size
    std = 0.8 * E**-0.5
    small = std / math.sqrt(2 * config.num_layers)

    def draw(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale

    out: Parameters = {}
    for i in range(config.num_layers):
        attn, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        out[f"layers.{i}.input_layernorm.weight"] = torch.ones(E)
        out[attn + "q_proj.weight"] = draw(config.num_heads * HD, E, std)
        out[attn + "k_proj.weight"] = draw(config.num_kv_heads * HD, E, std)
        out[attn + "v_proj.weight"] = draw(config.num_kv_heads * HD, E, std)
        out[attn + "o_proj.weight"] = draw(E, config.num_heads * HD, small)
        out[attn + "q_norm.weight"] = torch.ones(HD)
        out[attn + "k_norm.weight"] = torch.ones(HD)
        out[f"layers.{i}.post_attention_layernorm.weight"] = torch.ones(E)
        out[mlp + "gate_proj.weight"] = draw(FF, E, std)
        out[mlp + "up_proj.weight"] = draw(FF, E, std)
        out[mlp + "down_proj.weight"] = draw(E, FF, small * math.sqrt(E / FF))
    width = len(config.target_layer_ids) * E
    out["fc.weight"] = draw(E, width, width**-0.5)
    out["hidden_norm.weight"] = torch.ones(E)
    out["norm.weight"] = torch.ones(E)
    return out


class HeadBlocks:
    """The head's forward over named parameters, in ``dtype``; the parameters themselves stay as they are.

    Args:
        feature_scale: (len(taps) * E,) multiplies the target's states before ``fc``; states of different layers
            differ by orders of magnitude. ``folded`` moves it into ``fc``.
        is_compiled: fuse what surrounds the attention with torch.compile (a minute once, on CUDA).
    """

    def __init__(
        self,
        config: HeadConfig,
        embedding: Tensor,
        feature_scale: Tensor,
        *,
        dtype: torch.dtype,
        max_positions: int,
        is_compiled: bool = False,
    ) -> None:
        self.config, self.dtype = config, dtype
        self.embedding = embedding
        self.feature_scale = feature_scale.to(embedding.device)
        cos, sin = rope_tables(max_positions, config.head_dim, config.rope_theta, embedding.device)
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)
        self._before: Any = torch.compile(_before_attention) if is_compiled else _before_attention
        self._after: Any = torch.compile(_after_attention) if is_compiled else _after_attention

    def eager(self) -> "HeadBlocks":
        """Return the same head without compiled parts, for shapes too rare to compile for."""
        twin = copy.copy(self)
        twin._before, twin._after = _before_attention, _after_attention
        return twin

    def context(self, p: Mapping[str, Tensor], states: Tensor) -> Tensor:
        """Project tapped target states (B, T, taps * E) to the head's context (B, T, E)."""
        weight = (p["fc.weight"] * self.feature_scale).to(self.dtype)
        projected = F.linear(states.to(self.dtype), weight)
        return _norm(projected, p["hidden_norm.weight"], self.config.rms_norm_eps)

    def folded(self, p: Mapping[str, Tensor]) -> Parameters:
        """Return the parameters as the public checkpoint stores them: bfloat16, on the CPU, the scale inside fc."""
        out = {name: value.detach() for name, value in p.items()}
        out["fc.weight"] = out["fc.weight"] * self.feature_scale.to(out["fc.weight"].device)
        return {name: value.to(torch.bfloat16).cpu().contiguous() for name, value in out.items()}

    def run(
        self, p: Mapping[str, Tensor], context: Tensor, tokens: Tensor, groups: Sequence[BlockGroup]
    ) -> list[Tensor]:
        """Run every block; return the normed states (B, A, positions, E) of each group.

        Args:
            context: (B, T, E) from ``context``; a block at anchor t reads positions below t only.
            tokens: (B, T) int64; the anchor's own token opens its block, the mask token fills the rest.
        """
        B = tokens.shape[0]
        ids, positions, sizes = [], [], []
        for group in groups:
            A, S = group.anchors.shape[1], group.num_positions
            block = torch.full((B, A, S), self.config.mask_token_id, device=tokens.device, dtype=torch.long)
            block[:, :, 0] = tokens.gather(1, group.anchors)
            ids.append(block.flatten())
            positions.append((group.anchors[..., None] + torch.arange(S, device=tokens.device)).flatten())
            sizes.append(B * A * S)
        h = self.embedding[torch.cat(ids)].to(self.dtype)
        where = torch.cat(positions)
        turns = (self.cos[where][:, None], self.sin[where][:, None])
        c = self.config
        for i in range(c.num_layers):
            weights = {name: p[f"layers.{i}.{name}"] for name in LAYER_WEIGHTS}
            h = self._layer(weights, h, context, turns, groups)
        h = _norm(h, p["norm.weight"], c.rms_norm_eps)
        return [
            part.view(B, group.anchors.shape[1], group.num_positions, -1)
            for part, group in zip(torch.split(h, sizes), groups, strict=True)
        ]

    def _layer(
        self, weights: dict[str, Tensor], h: Tensor, context: Tensor, turns: Turns, groups: Sequence[BlockGroup]
    ) -> Tensor:
        B, T, _ = context.shape
        c = self.config
        row = (self.cos[:T, None], self.sin[:T, None])
        q, k, v, kc, vc = self._before(h, context, weights, turns, row, head_dim=c.head_dim, eps=c.rms_norm_eps)
        sizes = [group.anchors.numel() * group.num_positions for group in groups]
        mixed = []
        for parts, group in zip(zip(*(torch.split(x, sizes) for x in (q, k, v)), strict=True), groups, strict=True):
            lead = (B, group.anchors.shape[1], group.num_positions)
            q_part, k_part, v_part = (x.view(*lead, *x.shape[1:]) for x in parts)
            out = block_attention(q_part, (k_part, v_part), (kc, vc), group.anchors)
            mixed.append(out.reshape(-1, c.num_heads * c.head_dim))
        after: Tensor = self._after(h, torch.cat(mixed), weights, c.rms_norm_eps)
        return after


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def _before_attention(
    h: Tensor, context: Tensor, weights: dict[str, Tensor], turns: Turns, row: Turns, *, head_dim: int, eps: float
) -> tuple[Tensor, ...]:
    """Return rotated queries, keys and values of the blocks (N, heads, HD), keys and values of the context."""
    x = _norm(h, weights["input_layernorm.weight"], eps)
    q_weight, k_weight, v_weight = (weights[f"self_attn.{n}_proj.weight"] for n in "qkv")

    def heads(values: Tensor, weight: Tensor) -> Tensor:
        return _linear(values, weight).view(*values.shape[:-1], -1, head_dim)

    q = _norm(heads(x, q_weight), weights["self_attn.q_norm.weight"], eps)
    k = _norm(heads(x, k_weight), weights["self_attn.k_norm.weight"], eps)
    kc = _norm(heads(context, k_weight), weights["self_attn.k_norm.weight"], eps)
    return rotate(q, *turns), rotate(k, *turns), heads(x, v_weight), rotate(kc, *row), heads(context, v_weight)


def _after_attention(h: Tensor, mixed: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    h = h + _linear(mixed, weights["self_attn.o_proj.weight"])
    x = _norm(h, weights["post_attention_layernorm.weight"], eps)
    gated = F.silu(_linear(x, weights["mlp.gate_proj.weight"])) * _linear(x, weights["mlp.up_proj.weight"])
    return h + _linear(gated, weights["mlp.down_proj.weight"])


def measure_feature_scale(states: Tensor, is_real: Tensor, num_taps: int) -> Tensor:
    """Return 1 / rms per channel of tapped states, tokens of massive activation left out.

    Args:
        states: (B, T, num_taps * E). is_real: (B, T) bool, False at padding and where a row starts.
    """
    x = states.float()[is_real].view(-1, num_taps, states.shape[-1] // num_taps)
    rms = x.square().mean(-1).sqrt()
    is_usual = (rms < 5 * rms.median(0).values).all(-1)
    channel = x[is_usual].square().mean(0).sqrt()
    return (1 / channel.clamp(min=0.05 * float(channel.median()))).flatten()
