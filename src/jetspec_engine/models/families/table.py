"""The table of families: ``model_type`` of a configuration file to the function that reads it.

A new family is one file beside this one and one line here.
"""

from collections.abc import Callable

from jetspec_engine.models.families import llama, mistral, qwen2, qwen3
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile

FAMILIES: dict[str, Callable[[JsonFile, int], Traits]] = {
    "llama": llama.read_traits,
    "mistral": mistral.read_traits,
    "qwen2": qwen2.read_traits,
    "qwen3": qwen3.read_traits,
}


def find_family(file: JsonFile) -> Callable[[JsonFile, int], Traits]:
    """Return the function that reads this file's family: ``read_traits(file, num_layers) -> Traits``.

    Raises:
        ArtifactError: an unsupported ``model_type``; the message lists the supported ones.
    """
    model_type = file.values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        file.refuse(
            "model_type",
            f"one of {', '.join(FAMILIES)}",
            hint="dense decoders only: mixture-of-experts, latent attention and recurrent layers are not supported",
        )
    return FAMILIES[model_type]
