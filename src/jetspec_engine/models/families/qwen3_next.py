"""Qwen3-Next: Gated DeltaNet layers between gated attention layers, experts with a shared one, zero-centred norms."""

from jetspec_engine.models.families.hybrid import gated_traits, read_experts
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Qwen3-Next configuration's switches."""
    is_normed = file.flag("norm_topk_prob", default=True)
    experts = read_experts(file, num_layers, has_shared=True, is_normed=is_normed, has_dense_layers=True)
    return gated_traits(file, num_layers, family="qwen3_next", experts=experts, is_grouped=True)
