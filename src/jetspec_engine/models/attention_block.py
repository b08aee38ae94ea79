"""The attention of a layer outside the dense path: heads normed or not, rotated in part, the output gated or not.

Knows the order of operations of one layer. Knows nothing of keys' whereabouts or of who sees whom: attention is a
callable it is given, as in ``decoder``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.decoder import Attend, LayerFactory, paired_rows
from jetspec_engine.models.elementwise import sigmoid
from jetspec_engine.models.norms import gain_of


class AttentionBlock:
    """Projections, attention and the way back to the states.

    Args:
        config: of the target.
        ordinal: the layer's place among those that attend.
        weights: this layer's tensors, names as in ``tensor_table.attention_tensors``.
        make: makes the linear layers.
    """

    def __init__(self, config: DecoderConfig, ordinal: int, weights: Mapping[str, Tensor], make: LayerFactory) -> None:
        self._config = config
        self._ordinal = ordinal
        self._norms = [
            pair_dimensions(config, gain_of(config, weights[f"self_attn.{name}_norm.weight"]).float())
            for name in ("qk" if config.has_qk_norm else "")
        ]
        self._project = make.linear(*fused_projection(config, weights))
        self._output = make.residual(weights["self_attn.o_proj.weight"], weights.get("self_attn.o_proj.bias"))

    def __call__(self, normed: Tensor, x: Tensor, attend: Attend) -> Tensor:
        """Return the states after the attention.

        Args:
            normed: (n, E) normed states.
            x: (n, E) states to add to.
            attend: attention over these rows' sequences.
        """
        config = self._config
        heads = self._project(normed).float().view(len(x), -1, config.head_dim)
        gates = config.num_heads if config.has_attention_gate else 0
        q, k, v, gate = heads.split_with_sizes((config.num_heads, config.num_kv_heads, config.num_kv_heads, gates), 1)
        if self._norms:
            q, k = (
                functional.rms_norm(part, (config.head_dim,), gain, config.rms_norm_eps)
                for part, gain in zip((q, k), self._norms, strict=True)
            )
        torch.cat((q, k, v), 1, out=attend.fused.view(len(x), -1, config.head_dim))
        mixed = attend(self._ordinal)
        if gates:
            mixed = (mixed.float() * sigmoid(gate.flatten(1))).to(x.dtype)
        return self._output(mixed, x)


def fused_projection(config: DecoderConfig, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of q, k, v and the gate in one product, q's and k's rows paired.

    A gated query projection stores each head's query rows and then its gate rows.
    """
    fused: list[Tensor | None] = []
    for kind in ("weight", "bias"):
        if kind == "bias" and not config.has_qkv_bias:
            fused.append(None)
            continue
        q, k, v = (weights[f"self_attn.{name}_proj.{kind}"] for name in "qkv")
        gates: list[Tensor] = []
        if config.has_attention_gate:
            by_head = q.view(config.num_heads, 2, config.head_dim, *q.shape[1:])
            q, gate = (by_head[:, part].reshape(-1, *q.shape[1:]) for part in (0, 1))
            gates = [gate]
        fused.append(torch.cat([pair_dimensions(config, q), pair_dimensions(config, k), v, *gates]))
    weight = fused[0]
    assert weight is not None
    return weight, fused[1]


def pair_dimensions(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Return rows (heads * head_dim, ...) with the dimensions that are turned together side by side.

    The first ``rotary_dim`` dimensions of a head are paired half of them apart; the others are not turned, and stay.
    """
    if config.rotary_dim is None:
        return paired_rows(rows, config.head_dim)
    heads = rows.view(-1, config.head_dim, *rows.shape[1:])
    turned = heads[:, : config.rotary_dim].reshape(-1, *rows.shape[1:])
    paired = paired_rows(turned, config.rotary_dim).view(len(heads), config.rotary_dim, *rows.shape[1:])
    return torch.cat((paired, heads[:, config.rotary_dim :]), 1).reshape(rows.shape)
