"""How large a layer's queries, keys and values can become for any input at all, from its weights.

Knows no numerics of attention; fixed-point attention needs these to choose grids that never overflow. After the RMS
norm a row has length sqrt(E) at most, so by Cauchy-Schwarz a projection is at most sqrt(E) times the length of its
weight row (gains included), plus its bias.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.norms import gain_of

# Rounding of the normed row and of the product to bfloat16, a few parts in a thousand, and room to spare.
MARGIN = 1.05


@dataclass(frozen=True, kw_only=True)
class LayerBounds:
    """Largest absolute value of any entry: of rotated queries, of rotated keys, of values."""

    query: float
    key: float
    value: float


def layer_bounds(config: DecoderConfig, weights: Mapping[str, Tensor], layer: int) -> LayerBounds:
    """Return the bounds of one layer; ``weights`` as ``load_weights`` returns them."""
    prefix = f"layers.{layer}."
    gains = gain_of(config, weights[prefix + "input_layernorm.weight"]).float()

    def reach(name: str) -> float:
        rows = weights[f"{prefix}self_attn.{name}_proj.weight"].float() * gains
        lengths = rows.norm(dim=1) * math.sqrt(config.hidden_size)
        if config.has_qkv_bias:
            lengths = lengths + weights[f"{prefix}self_attn.{name}_proj.bias"].float().abs()
        return float(lengths.max()) * MARGIN

    def rotated_reach(name: str) -> float:
        largest = reach(name)
        if config.has_qk_norm:
            gain = gain_of(config, weights[f"{prefix}self_attn.{name}_norm.weight"])
            largest = math.sqrt(config.head_dim) * float(gain.abs().max())
        # A rotation turns a pair (a, a) into (sqrt(2) a, 0).
        return largest * math.sqrt(2) * MARGIN

    return LayerBounds(query=rotated_reach("q"), key=rotated_reach("k"), value=reach("v"))
