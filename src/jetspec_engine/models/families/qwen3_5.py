"""Qwen3.5 and Qwen3.6, text: as Qwen3-Next, with DeltaNet's projections stored apart; dense or all experts.

Vision towers and multi-token-prediction layers of the same checkpoints are left aside.
"""

from jetspec_engine.models.families.hybrid import read_delta, read_experts
from jetspec_engine.models.families.qwen3_next import HEAD_DIM, ROTARY_SHARE
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.layer_kinds import ExpertShape


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a dense Qwen3.5's switches."""
    return _read(file, num_layers, None)


def read_moe_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read the switches of a Qwen3.5 with experts, whose chosen probabilities are always scaled."""
    experts = read_experts(file, num_layers, has_shared=True, is_normed=True, has_dense_layers=False)
    return _read(file, num_layers, experts)


def _read(file: JsonFile, num_layers: int, experts: ExpertShape | None) -> Traits:
    has_bias = file.flag("attention_bias", default=False)
    return Traits(
        family="qwen3_5",
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_qk_norm=True,
        sliding_windows=(None,) * num_layers,
        default_head_dim=HEAD_DIM,
        default_rotary_share=ROTARY_SHARE,
        has_attention_gate=True,
        is_norm_zero_centred=True,
        experts=experts,
        delta=read_delta(file, num_layers, is_grouped=False),
    )
