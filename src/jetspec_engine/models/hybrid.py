"""A decoder layer that is not the dense one: attention or DeltaNet, then one MLP or a mixture of experts.

Knows which parts a layer has. Dense targets never come here; they keep ``decoder.DecoderLayer``.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jetspec_engine.models.attention_block import AttentionBlock
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.decoder import LayerFactory
from jetspec_engine.models.delta_block import DeltaBlock
from jetspec_engine.models.expert_block import ExpertBlock
from jetspec_engine.models.norms import RowNorm


class HybridLayer:
    """One layer's weights and its forward.

    Args:
        config: of the target.
        index: 0 .. L - 1.
        weights: this layer's tensors, names as in ``tensor_table.layer_tensors``.
        make: makes the linear layers.
    """

    def __init__(self, config: DecoderConfig, index: int, weights: Mapping[str, Tensor], make: LayerFactory) -> None:
        kind = DeltaBlock if config.is_delta(index) else AttentionBlock
        ordinal = sum(config.is_delta(layer) == config.is_delta(index) for layer in range(index))
        self._mix = kind(config, ordinal, weights, make)
        self._feed = ExpertBlock(config, weights, make) if config.is_sparse(index) else Mlp(weights, make)
        self._input_norm = RowNorm(config, weights["input_layernorm.weight"])
        self._inner_norm = RowNorm(config, weights["post_attention_layernorm.weight"])

    def __call__(self, index: int, x: Tensor, attend: Any) -> Tensor:  # noqa: ARG002  parts know their ordinals
        """Return the states after this layer, (n, E); ``attend`` is ``decoder.Attend``, and ``Recur`` with DeltaNet."""
        x = self._mix(self._input_norm(x), x, attend)
        return self._feed(self._inner_norm(x), x)


class Mlp:
    """The gated MLP of a dense layer."""

    def __init__(self, weights: Mapping[str, Tensor], make: LayerFactory) -> None:
        self._gated = make.gated(weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"])
        self._down = make.residual(weights["mlp.down_proj.weight"])

    def __call__(self, normed: Tensor, x: Tensor) -> Tensor:
        """Return ``x`` plus the MLP's output for the normed states (n, E)."""
        return self._down(self._gated(normed), x)
