"""A Gated DeltaNet layer: projections, a short causal convolution, a recurrent state per head, a gated norm.

Knows the order of operations of one layer. Knows nothing of trees, of where states live or of who comes before whom:
both are asked of the ``Recur`` it is given. Every operation here works on each row alone.

Source: Yang et al. 2024, "Gated Delta Networks" (arXiv 2412.06464); the layer's form and its checkpoints' layout are
those of Qwen3-Next and Qwen3.5 in transformers.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.decoder import LayerFactory
from jetspec_engine.models.elementwise import pairwise_sum_, sigmoid, silu, softplus, unit_rows
from jetspec_engine.models.layer_kinds import DeltaShape

UNIT_EPS = 1e-6


class Recur(Protocol):
    """What rows carry over from those before them in their own texts."""

    def window(self, layer: int, rows: Tensor) -> Tensor:
        """Return each row behind its predecessors, for the convolution, and keep the rows until a commit.

        Args:
            layer: place among the DeltaNet layers.
            rows: (n, channels).

        Returns:
            (n, conv_size, channels), oldest first, the row itself last; zeros before a text's start.
        """
        ...

    def scan(self, layer: int, *, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """Run every row's update on its parent's state, read it, and keep the rows until a commit.

        Args:
            layer: place among the DeltaNet layers.
            q, k: (n, key heads, key_dim) float32.
            v: (n, value heads, value_dim) float32.
            decay, beta: (n, value heads) float32 in [0, 1].

        Returns:
            (n, value heads, value_dim) float32.
        """
        ...


class DeltaBlock:
    """One layer.

    Args:
        config: of the target, with DeltaNet layers.
        ordinal: the layer's place among them.
        weights: this layer's tensors, names as in ``tensor_table.delta_tensors``.
        make: makes the linear layers.
    """

    def __init__(self, config: DecoderConfig, ordinal: int, weights: Mapping[str, Tensor], make: LayerFactory) -> None:
        shape = config.delta
        assert shape is not None
        self._shape = shape
        self._ordinal = ordinal
        self._eps = config.rms_norm_eps
        self._project = make.linear(fused_inputs(shape, weights))
        self._taps = weights["linear_attn.conv1d.weight"].float().squeeze(1).T.contiguous()
        self._rates = -weights["linear_attn.A_log"].float().exp()
        self._offsets = weights["linear_attn.dt_bias"].float()
        self._gain = weights["linear_attn.norm.weight"].float()
        self._output = make.residual(weights["linear_attn.out_proj.weight"])

    def __call__(self, normed: Tensor, x: Tensor, recur: Recur) -> Tensor:
        """Return the states after the layer's recurrent part.

        Args:
            normed: (n, E) normed states.
            x: (n, E) states to add to.
            recur: these rows' pasts.
        """
        shape, count = self._shape, len(x)
        sizes = (shape.conv_channels, shape.value_size, shape.num_value_heads, shape.num_value_heads)
        mixed, z, b, a = self._project(normed).split_with_sizes(sizes, 1)
        q, k, v = self._convolve(recur.window(self._ordinal, mixed)).split_with_sizes(
            (shape.key_size, shape.key_size, shape.value_size), 1
        )
        q, k = (unit_rows(part.view(count, -1, shape.key_dim), UNIT_EPS) for part in (q, k))
        read = recur.scan(
            self._ordinal,
            q=q / math.sqrt(shape.key_dim),
            k=k,
            v=v.reshape(count, -1, shape.value_dim),
            decay=torch.exp(self._rates * softplus(a.float() + self._offsets)),
            beta=sigmoid(b.float()),
        )
        gates = silu(z.float()).view(count, -1, shape.value_dim)
        mean_square = pairwise_sum_(read * read, -1) / shape.value_dim
        gated = read / (mean_square + self._eps).sqrt() * self._gain * gates
        return self._output(gated.flatten(1).to(x.dtype), x)

    def _convolve(self, window: Tensor) -> Tensor:
        """Return the activated convolution (n, channels) float32, taps added oldest first."""
        total = window[:, 0].float() * self._taps[0]
        for tap in range(1, self._shape.conv_size):
            total = total + window[:, tap].float() * self._taps[tap]
        return silu(total)


def fused_inputs(shape: DeltaShape, weights: Mapping[str, Tensor]) -> Tensor:
    """Return the rows of q, k, v, z, b and a, in this order and head by head, as one weight.

    Grouped checkpoints hold, for each key head, its q, its k, and the v and z of the value heads it serves; and
    likewise the b and the a of these.
    """
    if not shape.is_grouped:
        return torch.cat([weights[f"linear_attn.in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")])
    group = shape.num_value_heads // shape.num_key_heads
    sizes = (shape.key_dim, shape.key_dim, group * shape.value_dim, group * shape.value_dim)
    qkvz, ba = (weights[f"linear_attn.in_proj_{name}.weight"] for name in ("qkvz", "ba"))
    by_head = qkvz.view(shape.num_key_heads, sum(sizes), -1).split_with_sizes(sizes, 1)
    gates = ba.view(shape.num_key_heads, 2 * group, -1).split_with_sizes((group, group), 1)
    return torch.cat([part.reshape(-1, qkvz.shape[1]) for part in (*by_head, *gates)])
