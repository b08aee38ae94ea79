"""The table of families: ``model_type`` of a configuration file to the function that reads it.

A new family is one file beside this one and one line here.
"""

from collections.abc import Callable

from jetspec_engine.models.families import llama, mistral, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile

FAMILIES: dict[str, Callable[[JsonFile, int], Traits]] = {
    "llama": llama.read_traits,
    "mistral": mistral.read_traits,
    "qwen2": qwen2.read_traits,
    "qwen3": qwen3.read_traits,
    "qwen3_moe": qwen3_moe.read_traits,
    "qwen3_next": qwen3_next.read_traits,
    "qwen3_5_text": qwen3_5.read_traits,
    "qwen3_5_moe_text": qwen3_5.read_moe_traits,
}
# Files of models that also see pictures keep the text model's configuration in text_config.
WITH_TEXT_CONFIG = ("qwen3_5", "qwen3_5_moe")


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
            hint="latent attention and other recurrent layers than Gated DeltaNet are not supported",
        )
    return FAMILIES[model_type]


def text_config(file: JsonFile) -> JsonFile:
    """Return the text model's own configuration: ``text_config`` of a model that also sees pictures, else the file.

    Whether the LM head is the embedding is said by the outer object there, as transformers reads it.
    """
    if file.values.get("model_type") not in WITH_TEXT_CONFIG:
        return file
    section = file.section("text_config")
    if section is None:
        file.refuse("text_config", "the text model's configuration")
    outer = {key: file.values[key] for key in ("tie_word_embeddings",) if file.values.get(key) is not None}
    return JsonFile(name=section.name, values={**section.values, **outer})
