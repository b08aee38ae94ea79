"""The rotary settings of a configuration file, in both spellings, reduced to one form.

Knows no frequencies: turning the settings into them is the forward's part.
"""

from collections.abc import Mapping
from typing import Any

from jetspec_engine.models.json_file import JsonFile

ROPE_TYPES = ("default", "linear", "llama3")


def read_rope(file: JsonFile) -> tuple[float, Mapping[str, Any] | None]:
    """Return (theta, scaling); scaling is None for plain rotary embeddings.

    Raises:
        ArtifactError: an unsupported kind of scaling, a missing or bad number, or two spellings that disagree.
    """
    modern = file.section("rope_parameters")
    older = file.section("rope_scaling")
    scaling = modern or older
    holder = modern if modern is not None and "rope_theta" in modern.values else file
    theta = holder.number("rope_theta", 1.0, 1e12, default=10_000.0)
    if holder is not file and file.number("rope_theta", 1.0, 1e12, default=theta) != theta:
        file.refuse("rope_theta", f"the rope_theta of rope_parameters ({theta}), or none")
    resolved = _read_scaling(scaling) if scaling is not None else None
    if modern is not None and older is not None and _read_scaling(older) != resolved:
        file.refuse("rope_scaling", "the same scaling as rope_parameters, or none")
    return theta, resolved


def _read_scaling(section: JsonFile) -> Mapping[str, Any] | None:
    """Return a scaling reduced to its kind's keys, or None for the default kind."""
    # Files before 2024 call the key "type".
    key = "rope_type" if "rope_type" in section.values else "type"
    kind = section.choice(key, ROPE_TYPES, default="default")
    if any(isinstance(value, dict) for value in section.values.values()):
        raise_key = next(key for key, value in section.values.items() if isinstance(value, dict))
        section.refuse(raise_key, "a number or a name: settings per kind of layer are not supported")
    if kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": section.number("factor", 1.0, 1e6)}
    if kind == "llama3":
        scaling["low_freq_factor"] = section.number("low_freq_factor", 1e-6, 1e6)
        scaling["high_freq_factor"] = section.number("high_freq_factor", 1e-6, 1e6)
        scaling["original_max_position_embeddings"] = section.integer("original_max_position_embeddings", 1, 1 << 30)
        if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            section.refuse("high_freq_factor", f"more than low_freq_factor ({scaling['low_freq_factor']})")
    return scaling


def read_rotary_share(file: JsonFile, default: float | None) -> float:
    """Return the share of a head's dimensions that are rotated, from either of the places that may give it.

    Args:
        file: the configuration.
        default: the family's own; None for families that rotate all, where the files may say nothing else.

    Raises:
        ArtifactError: two places that disagree, or a share this family does not have.
    """
    places = [file, *filter(None, (file.section("rope_parameters"), file.section("rope_scaling")))]
    given = [place for place in places if place.values.get("partial_rotary_factor") is not None]
    share = 1.0 if default is None else default
    expected = share if default is None or not given else given[0].number("partial_rotary_factor", 0.0, 1.0)
    for place in given:
        if place.number("partial_rotary_factor", 0.0, 1.0) != expected:
            place.refuse("partial_rotary_factor", f"{expected}")
    return expected
