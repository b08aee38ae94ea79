"""Qwen3-Next: Gated DeltaNet layers between gated attention layers, experts with a shared one, zero-centred norms."""

from jetspec_engine.models.families.hybrid import read_delta, read_experts
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile

HEAD_DIM = 256
ROTARY_SHARE = 0.25


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Qwen3-Next configuration's switches."""
    has_bias = file.flag("attention_bias", default=False)
    is_normed = file.flag("norm_topk_prob", default=True)
    return Traits(
        family="qwen3_next",
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_qk_norm=True,
        sliding_windows=(None,) * num_layers,
        default_head_dim=HEAD_DIM,
        default_rotary_share=ROTARY_SHARE,
        has_attention_gate=True,
        is_norm_zero_centred=True,
        experts=read_experts(file, num_layers, has_shared=True, is_normed=is_normed, has_dense_layers=True),
        delta=read_delta(file, num_layers, is_grouped=True),
    )
