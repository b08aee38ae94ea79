"""Qwen3.5 and Qwen3.6, text: as Qwen3-Next, with DeltaNet's projections stored apart; dense or all experts.

Vision towers and multi-token-prediction layers of the same checkpoints are left aside.
"""

from jetspec_engine.models.families.hybrid import gated_traits, read_experts
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a dense Qwen3.5's switches."""
    return gated_traits(file, num_layers, family="qwen3_5", experts=None, is_grouped=False)


def read_moe_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read the switches of a Qwen3.5 with experts, whose chosen probabilities are always scaled."""
    experts = read_experts(file, num_layers, has_shared=True, is_normed=True, has_dense_layers=False)
    return gated_traits(file, num_layers, family="qwen3_5", experts=experts, is_grouped=False)
