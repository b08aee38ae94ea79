"""Whether a draft head's rows see later rows, carried from its configuration into SGLang's draft attention.

SGLang 0.5.17 reads one of the three public key names, and only when ``layer_types`` is there: a head trained causally
would draft bidirectionally without a word, and its acceptance would fall. This holds for stock DFLASH too, so that a
baseline is the same model. Imports nothing of sglang at module level. Knows nothing of trees.
"""

from collections.abc import Callable
from typing import Any

from jetspec_engine.draft.config import CAUSALITY_KEYS
from jetspec_engine.draft.config_fields import ConfigFields
from jetspec_engine.errors import ArtifactError

LayerAttention = tuple[int, Any]
WHERE = "draft head's config.json"


def is_causal(config: Any) -> bool:
    """Say whether a head is causal.

    Args:
        config: a Hugging Face configuration object or a mapping; read at the top level, in ``text_config`` and in
            ``dflash_config`` / ``jetspec_config``.

    Returns:
        False when no key is there: the first public heads are bidirectional and have none.

    Raises:
        ArtifactError: the keys contradict each other, or one is no boolean.
    """
    given = _plain(config)
    text = _plain(given.get("text_config") or {})
    inner = ConfigFields(text, WHERE).boolean(*CAUSALITY_KEYS)
    outer = ConfigFields(given, WHERE).boolean(*CAUSALITY_KEYS)
    if inner is not None and outer is not None and inner != outer:
        raise ArtifactError(f"{WHERE}: text_config: {inner} for is_causal, expected the top level's {outer}")
    return bool(outer if inner is None else inner)


def layer_attention(original: Callable[[Any, int], LayerAttention], config: Any, layer_id: int) -> LayerAttention:
    """Give a draft layer its window and attention type (around SGLang's function of that purpose).

    Args:
        original: SGLang's; decides the window.
        config: the head's.
        layer_id: layer of the head.

    Returns:
        The window (-1 for none) and SGLang's ``AttentionType``: DECODER for a causal head, ENCODER_ONLY for a
        bidirectional one.

    Raises:
        ArtifactError: contradicting keys, or a bidirectional head with windows, which SGLang would run causally.
    """
    from sglang.srt.layers.radix_attention import AttentionType

    window, _ = original(config, layer_id)
    if is_causal(config):
        return window, AttentionType.DECODER
    if window >= 0:
        raise ArtifactError(
            f"{WHERE}: layer {layer_id}: sliding_attention in a bidirectional head",
            hint="sglang runs such a layer causally; set is_causal if the head was trained so",
        )
    return window, AttentionType.ENCODER_ONLY


def _plain(config: Any) -> dict[str, Any]:
    return dict(config) if isinstance(config, dict) else dict(vars(config))
