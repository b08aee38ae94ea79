"""Qwen3-MoE: Qwen3's attention with mixture-of-experts MLPs; its sliding window, if used, holds for every layer."""

from jetspec_engine.models.families.hybrid import read_experts
from jetspec_engine.models.families.traits import MAX_WINDOW, Traits
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Qwen3-MoE configuration's switches."""
    has_bias = file.flag("attention_bias", default=False)
    is_windowed = file.flag("use_sliding_window", default=False)
    default = 4096 if "sliding_window" not in file.values else None
    window = file.integer("sliding_window", 1, MAX_WINDOW, default=default) if is_windowed else None
    is_normed = file.flag("norm_topk_prob", default=False)
    return Traits(
        family="qwen3_moe",
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_qk_norm=True,
        sliding_windows=(window,) * num_layers,
        experts=read_experts(file, num_layers, has_shared=False, is_normed=is_normed, has_dense_layers=True),
    )
