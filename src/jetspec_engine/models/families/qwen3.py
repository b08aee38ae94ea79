"""Qwen3, dense: q and k are normed per head; ``head_dim`` is free of the hidden size, 128 when absent."""

from jetspec_engine.models.families.traits import Traits, read_switched_windows
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Qwen3 configuration's switches."""
    has_bias = file.flag("attention_bias", default=False)
    return Traits(
        family="qwen3",
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_qk_norm=True,
        sliding_windows=read_switched_windows(file, num_layers),
        default_head_dim=128,
    )
