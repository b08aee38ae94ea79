"""Qwen2 and Qwen2.5, dense: q, k and v are always biased, o never."""

from jetspec_engine.models.families.traits import Traits, read_switched_windows
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Qwen2 configuration's switches."""
    return Traits(family="qwen2", has_qkv_bias=True, sliding_windows=read_switched_windows(file, num_layers))
