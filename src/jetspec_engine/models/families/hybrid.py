"""Keys that the mixture-of-experts and the hybrid Qwen families share: experts, DeltaNet layers, kinds of layers.

Knows no family: each asks for what it has.
"""

from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.layer_kinds import DeltaShape, ExpertShape

LAYER_TYPES = ("linear_attention", "full_attention")
MAX_SIZE = 1_000_000
DEFAULT_INTERVAL = 4
HEAD_DIM = 256
ROTARY_SHARE = 0.25


def read_experts(
    file: JsonFile, num_layers: int, *, has_shared: bool, is_normed: bool, has_dense_layers: bool
) -> ExpertShape:
    """Read the experts.

    Args:
        file: the configuration.
        num_layers: of the target.
        has_shared: whether the family has a shared expert.
        is_normed: whether the chosen probabilities are scaled.
        has_dense_layers: whether the family's keys can make some layers' MLPs dense.
    """
    # transformers 5 writes num_local_experts for Qwen3-MoE, older files and the other families num_experts.
    key = "num_local_experts" if "num_local_experts" in file.values else "num_experts"
    num_experts = file.integer(key, 1, 100_000)
    return ExpertShape(
        num_experts=num_experts,
        num_chosen=file.integer("num_experts_per_tok", 1, num_experts),
        inner_size=file.integer("moe_intermediate_size", 1, MAX_SIZE),
        shared_size=file.integer("shared_expert_intermediate_size", 1, MAX_SIZE) if has_shared else None,
        is_normed=is_normed,
        layers=_sparse_layers(file, num_layers) if has_dense_layers else (True,) * num_layers,
    )


def _sparse_layers(file: JsonFile, num_layers: int) -> tuple[bool, ...]:
    step = file.integer("decoder_sparse_step", 1, 100_000, default=1)
    dense = file.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(not isinstance(layer, int) or isinstance(layer, bool) for layer in dense):
        file.refuse("mlp_only_layers", "a list of layer indices")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))


def gated_traits(
    file: JsonFile, num_layers: int, *, family: str, experts: ExpertShape | None, is_grouped: bool
) -> Traits:
    """Return the switches of a family with DeltaNet layers between gated attention layers and zero-centred norms.

    Args:
        file: the configuration.
        num_layers: of the target.
        family: its name.
        experts: read before, None for dense MLPs.
        is_grouped: whether DeltaNet's projections are stored together, by group of heads.
    """
    has_bias = file.flag("attention_bias", default=False)
    return Traits(
        family=family,
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_qk_norm=True,
        sliding_windows=(None,) * num_layers,
        default_head_dim=HEAD_DIM,
        default_rotary_share=ROTARY_SHARE,
        has_attention_gate=True,
        is_norm_zero_centred=True,
        experts=experts,
        delta=read_delta(file, num_layers, is_grouped=is_grouped),
    )


def read_delta(file: JsonFile, num_layers: int, *, is_grouped: bool) -> DeltaShape:
    """Read the DeltaNet layers. Raises ArtifactError when no layer attends, or heads do not divide."""
    num_key_heads = file.integer("linear_num_key_heads", 1, 100_000, default=16)
    num_value_heads = file.integer("linear_num_value_heads", 1, 100_000, default=32)
    if num_value_heads % num_key_heads:
        file.refuse("linear_num_value_heads", f"a multiple of linear_num_key_heads ({num_key_heads})")
    return DeltaShape(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_dim=file.integer("linear_key_head_dim", 1, 65_536, default=128),
        value_dim=file.integer("linear_value_head_dim", 1, 65_536, default=128),
        conv_size=file.integer("linear_conv_kernel_dim", 2, 1024, default=4),
        is_grouped=is_grouped,
        layers=_delta_layers(file, num_layers),
    )


def _delta_layers(file: JsonFile, num_layers: int) -> tuple[bool, ...]:
    kinds = file.values.get("layer_types")
    if kinds is None:
        interval = file.integer("full_attention_interval", 1, 1000, default=DEFAULT_INTERVAL)
        kinds = [LAYER_TYPES[(layer + 1) % interval == 0] for layer in range(num_layers)]
        if LAYER_TYPES[1] not in kinds:
            file.refuse("num_hidden_layers", f"at least {interval}, or layer_types with a full_attention")
    expected = f"{num_layers} entries (num_hidden_layers), each {' or '.join(LAYER_TYPES)}, one full_attention at least"
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in LAYER_TYPES for kind in kinds):
        file.refuse("layer_types", expected)
    if LAYER_TYPES[1] not in kinds:
        file.refuse("layer_types", expected)
    return tuple(kind == LAYER_TYPES[0] for kind in kinds)
