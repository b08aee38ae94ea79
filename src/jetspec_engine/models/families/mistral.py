"""Mistral: a Llama without biases whose ``sliding_window`` holds for every layer, 4096 when the key is absent."""

from jetspec_engine.models.families.traits import MAX_WINDOW, Traits
from jetspec_engine.models.json_file import JsonFile


def read_traits(file: JsonFile, num_layers: int) -> Traits:
    """Read a Mistral configuration's switches."""
    # An absent key means the published default, an explicit null means no window.
    is_default = "sliding_window" not in file.values
    window = 4096 if is_default else file.integer("sliding_window", 1, MAX_WINDOW, default=None)
    return Traits(family="llama", sliding_windows=(window,) * num_layers)
