"""Which arithmetic of attention a device gets: the fastest that keeps its bits there.

Knows the arithmetics and their probes; nothing of rows, slots or sizes. Asked for a model before its weights are
loaded, too, because what keys and values are stored as decides how many of them memory holds.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from jetspec_engine.embedded.attention import Arithmetic
from jetspec_engine.embedded.scores import ExactScores, Float32Scores, probe_scores
from jetspec_engine.embedded.sums import MAX_SEQUENTIAL_NODES, ExactSums, SequentialSums, probe_sequential
from jetspec_engine.models.bounds import layer_bounds
from jetspec_engine.models.config import DecoderConfig


def choose_arithmetic(
    config: DecoderConfig, weights: Mapping[str, Tensor], device: torch.device, max_nodes: int
) -> Arithmetic:
    """Return the fastest arithmetic of attention that is invariant on this device, for trees of ``max_nodes``."""
    has_fast_scores, has_fast_sums = _find_fast(config, device, max_nodes)
    is_bounded = has_fast_scores and has_fast_sums
    bounds = [] if is_bounded else [layer_bounds(config, weights, layer) for layer in config.attention_layers]
    return Arithmetic(
        scores=Float32Scores(config.head_dim) if has_fast_scores else ExactScores(config.head_dim, bounds),
        sums=SequentialSums(config.head_dim, max_nodes) if has_fast_sums else ExactSums(bounds),
    )


def stored_dtypes(config: DecoderConfig, device: torch.device, max_nodes: int) -> tuple[torch.dtype, torch.dtype]:
    """Return what keys and values are stored as under ``choose_arithmetic``; probes this machine, as that does."""
    has_fast_scores, has_fast_sums = _find_fast(config, device, max_nodes)
    keys = Float32Scores.key_dtype if has_fast_scores else ExactScores.key_dtype
    return keys, SequentialSums.value_dtype if has_fast_sums else ExactSums.value_dtype


def _find_fast(config: DecoderConfig, device: torch.device, max_nodes: int) -> tuple[bool, bool]:
    """Return whether the fast scores and the fast sums are invariant here."""
    heads = (config.num_kv_heads, config.head_dim, torch.get_num_threads())
    is_cpu = device.type == "cpu"
    has_fast_sums = is_cpu and max_nodes <= MAX_SEQUENTIAL_NODES and probe_sequential(*heads)
    return is_cpu and probe_scores(*heads), has_fast_sums
