"""Llama: no sliding windows; ``attention_bias`` switches all four projection biases together."""

from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Llama configuration's switches. Raises ArtifactError on MLP biases."""
    if file.flag("mlp_bias", default=False):
        file.refuse("mlp_bias", "false (biased MLPs are not supported)")
    has_bias = file.flag("attention_bias", default=False)
    return Traits(family="llama", has_qkv_bias=has_bias, has_o_bias=has_bias, sliding_windows=(None,) * num_layers)
