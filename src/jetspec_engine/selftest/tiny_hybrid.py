"""A tiny random target with recurrent layers and experts, for the faults that a dense one cannot have.

Takes the place of the dense target of ``tiny_pair``: same vocabulary, width and number of layers, so that its head and
tokenizer serve here too.
"""

from dataclasses import replace

import torch
from torch import Tensor

from jetspec_engine.models.layer_kinds import DeltaShape, ExpertShape
from jetspec_engine.models.random_target import random_tensors
from jetspec_engine.selftest import tiny_pair

TARGET = replace(
    tiny_pair.TARGET,
    family="qwen3_next",
    model_type="qwen3_next",
    rms_norm_eps=1e-6,
    sliding_windows=(None,) * tiny_pair.TARGET.num_layers,
    rotary_dim=8,
    has_attention_gate=True,
    is_norm_zero_centred=True,
    experts=ExpertShape(
        num_experts=6, num_chosen=3, inner_size=24, shared_size=24, is_normed=True, layers=(True, True, False)
    ),
    delta=DeltaShape(
        num_key_heads=2,
        num_value_heads=4,
        key_dim=12,
        value_dim=8,
        conv_size=4,
        is_grouped=True,
        layers=(True, False, True),
    ),
)


def target_weights(dtype: torch.dtype, seed: int = 3) -> dict[str, Tensor]:
    """Return the target's tensors; some of its logits tie bit by bit, as the dense target's do."""
    weights = random_tensors(TARGET, seed)
    head = weights["lm_head.weight"]
    head[list(tiny_pair.TWINS)] = head[[token - tiny_pair.TWIN_DISTANCE for token in tiny_pair.TWINS]]
    return {name: tensor.to(dtype) for name, tensor in weights.items()}
