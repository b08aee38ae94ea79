"""Head configurations that are recognised and refused, because running them as something else would draft badly.

Knows nothing of how a supported head is read; see ``config``.

Source: the public variants of the DFlash format: JetSpec++ (adapter, thresholds), reduced draft vocabularies,
normalised ``fc`` inputs, correction heads (Domino, DSpark).
"""

from typing import Any

from jetspec_engine.draft.config_fields import ConfigFields
from jetspec_engine.errors import ArtifactError

PLUS_PLUS_MARKS = ("adapter", "threshold", "jetspec++", "jetspec_plus", "jetspecplus")
HEAD_KEYS = ("num_target_layers", "target_layer_ids", "block_size", "mask_token_id")
CORRECTION_HEAD_MARKS = ("markov", "prefix_gru", "confidence")
PLUS_PLUS_HINT = "JetSpec++ heads (adapter, thresholds) are not supported; use the plain JetSpec head of this target"


def is_plus_plus_name(name: str) -> bool:
    """Say whether a configuration key, architecture or tensor name belongs to a JetSpec++ head."""
    return any(mark in name.lower() for mark in PLUS_PLUS_MARKS)


def refuse_what_we_cannot_run(fields: ConfigFields) -> None:
    """Raise ArtifactError for the first setting whose head would be run otherwise than it was trained."""
    _refuse_targets(fields)
    _refuse_variants(fields)
    _refuse_rope(fields)
    for key, expected in (("attention_bias", False), ("mlp_bias", False), ("fc_layernorm", False)):
        for full_key, value in fields.everywhere(key):
            if value != expected:
                raise fields.error(full_key, value, "false")
    for full_key, value in fields.everywhere("hidden_act"):
        if value != "silu":
            raise fields.error(full_key, value, "'silu'")
    for full_key, value in fields.everywhere("quantization_config"):
        raise fields.error(full_key, value, "no quantization (float32, float16 or bfloat16 weights)")
    hidden_size = fields.integer("hidden_size", 1, 2**20)
    vocab_size = fields.integer("vocab_size", 2, 2**31 - 1)
    for full_key, value in fields.everywhere("target_hidden_size"):
        if value != hidden_size:
            raise fields.error(full_key, value, f"hidden_size {hidden_size} (no adapter)", hint=PLUS_PLUS_HINT)
    for full_key, value in fields.everywhere("draft_vocab_size"):
        if value != vocab_size:
            raise fields.error(full_key, value, f"vocab_size {vocab_size} (no reduced draft vocabulary)")


def _refuse_targets(fields: ConfigFields) -> None:
    if not fields.everywhere(*HEAD_KEYS):
        raise ArtifactError(
            f"{fields.where}: none of {', '.join(HEAD_KEYS)}, expected a draft head's configuration, not a target's",
            hint="jetspec models list shows the heads; --head auto takes the target's own",
        )


def _refuse_variants(fields: ConfigFields) -> None:
    for _, architecture in fields.everywhere("architectures", "model_type"):
        if is_plus_plus_name(str(architecture)):
            raise fields.error("architectures", architecture, "a plain DFlash or JetSpec head", hint=PLUS_PLUS_HINT)
    for key, value in fields.all_items():
        if is_plus_plus_name(key) and not _is_off(value):
            raise fields.error(key, value, "a plain DFlash or JetSpec head", hint=PLUS_PLUS_HINT)
        if any(mark in key.lower() for mark in CORRECTION_HEAD_MARKS) and not _is_off(value):
            raise fields.error(key, value, "a head without a correction head")


def _refuse_rope(fields: ConfigFields) -> None:
    for key, value in fields.everywhere("rope_scaling", "rope_parameters"):
        if not isinstance(value, dict):
            raise fields.error(key, value, "a JSON object or null")
        kind = value.get("rope_type", value.get("type", "default"))
        if kind != "default":
            raise ArtifactError(f"{fields.where}: {key}.rope_type: {kind!r}, expected 'default'")


def _is_off(value: Any) -> bool:
    return value is None or value is False or value == 0 or value in ({}, [], "")
