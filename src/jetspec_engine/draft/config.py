"""What a draft head's ``config.json`` says, checked and resolved once.

Knows nothing of tensors, of the target, or of where the file lies. Everything this package cannot run as the file
describes it is refused here, since a head run otherwise than trained drafts badly without any error.

Source: the public DFlash / JetSpec checkpoint format (``dflash_config``), and the key names vLLM, NeMo and SGLang use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from jetspec_engine.draft.config_fields import NESTED_BLOCKS, ConfigFields
from jetspec_engine.draft.config_refusals import refuse_what_we_cannot_run
from jetspec_engine.draft.taps import default_target_layer_ids
from jetspec_engine.errors import ArtifactError

CAUSALITY_KEYS = ("causal_head", "causal", "is_causal")
MAX_BLOCK_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A draft head's shape and conventions.

    Attributes:
        num_layers: decoder layers of the head.
        hidden_size: E, equal to the target's.
        num_heads, num_kv_heads, head_dim: attention shape; num_heads is a multiple of num_kv_heads.
        intermediate_size: width of the gated MLP.
        vocab_size: V, equal to the target's.
        rms_norm_eps, rope_theta: as trained.
        max_position_embeddings: positions the head was made for.
        block_size: rows of one draft forward: the anchor and D masks, so D + 1.
        mask_token_id: id whose target embedding fills the D slots after the anchor.
        target_layer_ids: 0-based target layers whose output states are concatenated, in this order.
        num_target_layers: layers of the target the head was trained on.
        is_causal: rows of the block see earlier rows only. When no causality key is present the head is bidirectional:
            the first public (DFlash) heads are, and they were published before the keys existed.
        is_shifted: row i predicts position i + 1 (rows 0..D-1 are read) instead of position i (rows 1..D).
        sliding_windows: per layer, how many positions back (own included) a row sees; None for all.
        bos_token_id: None when the file has none.
        eos_token_ids: empty when the file has none.
        extra: keys this package gives no meaning to (training records and the like).
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    is_causal: bool
    is_shifted: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """D, draft positions after the anchor."""
        return self.block_size - 1

    @property
    def tapped_size(self) -> int:
        """Width of the concatenated target states, ``len(target_layer_ids) * hidden_size``."""
        return len(self.target_layer_ids) * self.hidden_size

    def window_of(self, layer: int) -> int | None:
        """Return the sliding window of a layer in positions, None for full attention."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @classmethod
    def from_mapping(cls, given: Any, *, where: str = "config.json") -> Self:
        """Check a parsed ``config.json`` and make the configuration.

        Args:
            given: the parsed JSON; keys may stand at the top level or in ``dflash_config`` / ``jetspec_config``.
            where: the file's name for messages.

        Raises:
            ArtifactError: one line with file, key, value and expectation.
        """
        fields = ConfigFields(given, where)
        refuse_what_we_cannot_run(fields)
        shape = _read_shape(fields)
        vocab_size = fields.integer("vocab_size", 2, 2**31 - 1)
        eos = fields.integers("eos_token_id", 0, vocab_size - 1)
        bos = fields.integers("bos_token_id", 0, vocab_size - 1)
        num_target_layers = fields.integer("num_target_layers", 1, 10_000)
        config = cls(
            **shape,
            vocab_size=vocab_size,
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope_theta=_rope_theta(fields),
            max_position_embeddings=fields.integer("max_position_embeddings", 2, 2**31 - 1),
            block_size=fields.integer("block_size", 2, MAX_BLOCK_SIZE),
            mask_token_id=fields.integer("mask_token_id", 0, vocab_size - 1),
            target_layer_ids=_target_layer_ids(fields, num_target_layers, shape["num_layers"]),
            num_target_layers=num_target_layers,
            is_causal=bool(fields.boolean(*CAUSALITY_KEYS)),
            is_shifted=bool(fields.boolean("sample_from_anchor")),
            sliding_windows=_sliding_windows(fields, shape["num_layers"]),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=eos or (),
        )
        has_meaning = {*config.to_mapping(), *CAUSALITY_KEYS, *NESTED_BLOCKS, *config.to_mapping()["dflash_config"]}
        return replace(config, extra={key: value for key, value in given.items() if key not in has_meaning})

    def to_mapping(self) -> dict[str, Any]:
        """Return a public-format ``config.json`` object with all three causality keys, extras included."""
        eos = list(self.eos_token_ids)
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_position_embeddings,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            **_window_keys(self.sliding_windows or (None,) * self.num_layers),
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
            # SGLang reads is_causal, vLLM and NeMo dflash_config.causal, JetSpec dflash_config.causal_head; a reader
            # that misses its own key runs the head bidirectionally without a word.
            "is_causal": self.is_causal,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
                "causal": self.is_causal,
                "causal_head": self.is_causal,
                **({"sample_from_anchor": True} if self.is_shifted else {}),
            },
            **self.extra,
        }


def _read_shape(fields: ConfigFields) -> dict[str, Any]:
    hidden_size = fields.integer("hidden_size", 1, 2**20)
    num_heads = fields.integer("num_attention_heads", 1, 2**16)
    num_kv_heads = fields.integer("num_key_value_heads", 1, num_heads, default=num_heads)
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads {num_heads}")
    head_dim = fields.integer("head_dim", 2, 2**16, default=max(2, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.error("head_dim", head_dim, "an even number (rotary embedding)")
    return {
        "num_layers": fields.integer("num_hidden_layers", 1, 1000),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": fields.integer("intermediate_size", 1, 2**24),
    }


def _rope_theta(fields: ConfigFields) -> float:
    """Newer files keep the base in ``rope_parameters`` only, older ones at the top level only, ours in both."""
    nested = [block.get("rope_theta") for _, block in fields.everywhere("rope_parameters")]
    inner = nested[0] if nested else None
    if inner is None:
        return fields.number("rope_theta")
    theta = ConfigFields({"rope_parameters.rope_theta": inner}, fields.where).number("rope_parameters.rope_theta")
    if fields.number("rope_theta", default=theta) != theta:
        raise fields.error(
            "rope_theta", fields.number("rope_theta"), f"the same as rope_parameters.rope_theta: {theta}"
        )
    return theta


def _target_layer_ids(fields: ConfigFields, num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    given = fields.integers("target_layer_ids", 0, num_target_layers - 1)
    ids = default_target_layer_ids(num_target_layers, num_layers) if given is None else given
    if not ids or len(set(ids)) != len(ids) or min(ids) < 0:
        raise fields.error(
            "target_layer_ids", list(ids), f"distinct layers in 0..{num_target_layers - 1}, at least one"
        )
    return ids


def _window_keys(windows: tuple[int | None, ...]) -> dict[str, Any]:
    return {
        "use_sliding_window": any(windows),
        "sliding_window": next(filter(None, windows), None),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }


def _sliding_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """An explicit ``use_sliding_window: false`` switches the windows off whatever the layer types say."""
    is_used = fields.boolean("use_sliding_window")
    listed = fields.everywhere("layer_types")
    if not listed and is_used:
        raise ArtifactError(
            f"{fields.where}: layer_types: missing, expected {num_layers} names (sliding window in use)"
        )
    types = listed[0][1] if listed else ["full_attention"] * num_layers
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.error("layer_types", types, f"a list of {num_layers} names, one a layer")
    for name in types:
        if name not in ("full_attention", "sliding_attention"):
            raise fields.error("layer_types", name, "full_attention or sliding_attention")
    if "sliding_attention" not in types or is_used is False:
        return ()
    window = fields.integer("sliding_window", 1, 2**31 - 1)
    return tuple(window if name == "sliding_attention" else None for name in types)
