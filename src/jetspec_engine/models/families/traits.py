"""What sets one decoder family apart from another, and the rules for sliding windows they share.

Knows no tensor and no forward: a family is read from ``config.json`` into these traits and nothing else.
"""

from dataclasses import dataclass

from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.layer_kinds import DeltaShape, ExpertShape

LAYER_TYPES = ("full_attention", "sliding_attention")
MAX_WINDOW = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A family's switches for one configuration file.

    Attributes:
        family: llama, qwen2, qwen3, qwen3_moe, qwen3_next or qwen3_5.
        has_qkv_bias, has_o_bias: biases of the attention projections.
        has_qk_norm: RMS norm over each head of q and k before the rotation.
        sliding_windows: per layer, the number of keys a query sees (itself included), or None for all.
        default_head_dim: used when ``head_dim`` is absent; None means hidden_size / num_attention_heads.
        default_rotary_share: of a head's dimensions that are rotated, where the file says nothing; None means that
            the family rotates all.
        has_attention_gate: the query projection also gives a gate for the attention's output.
        is_norm_zero_centred: norms of states, queries and keys multiply by 1 + weight.
        experts: the mixture-of-experts MLPs, None without.
        delta: the Gated DeltaNet layers, None without.
    """

    family: str
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_qk_norm: bool = False
    sliding_windows: tuple[int | None, ...]
    default_head_dim: int | None = None
    default_rotary_share: float | None = None
    has_attention_gate: bool = False
    is_norm_zero_centred: bool = False
    experts: ExpertShape | None = None
    delta: DeltaShape | None = None


def read_switched_windows(file: JsonFile, num_layers: int) -> tuple[int | None, ...]:
    """Return the windows of families that have ``use_sliding_window`` (Qwen2, Qwen3).

    ``layer_types`` decides where it is given; otherwise layers from ``max_window_layers`` on are windowed. Without
    ``use_sliding_window`` no layer is, whatever ``sliding_window`` says.
    """
    is_used = file.flag("use_sliding_window", default=False)
    window = file.integer("sliding_window", 1, MAX_WINDOW, default=None)
    kinds = read_layer_types(file, num_layers)
    if kinds is None:
        first = file.integer("max_window_layers", 0, 1_000_000, default=28)
        kinds = tuple(LAYER_TYPES[1] if layer >= first else LAYER_TYPES[0] for layer in range(num_layers))
    elif LAYER_TYPES[1] in kinds and (not is_used or window is None):
        file.refuse("layer_types", "only full_attention unless use_sliding_window is true and sliding_window is given")
    if not is_used:
        return (None,) * num_layers
    return tuple(window if kind == LAYER_TYPES[1] else None for kind in kinds)


def read_layer_types(file: JsonFile, num_layers: int) -> tuple[str, ...] | None:
    """Return ``layer_types`` checked for length and names, or None when absent."""
    kinds = file.values.get("layer_types")
    if kinds is None:
        return None
    expected = f"{num_layers} entries (num_hidden_layers), each {' or '.join(LAYER_TYPES)}"
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in LAYER_TYPES for kind in kinds):
        file.refuse("layer_types", expected)
    return tuple(kinds)
