"""A target's configuration, read from a Hugging Face model folder and checked.

Knows no tensors, no tokenizer and no network. Both spellings of the rotary settings are read: ``rope_theta`` with
``rope_scaling`` (older files) and ``rope_parameters`` (transformers 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jetspec_engine.models.families.table import find_family, text_config
from jetspec_engine.models.families.traits import Traits
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.layer_kinds import DeltaShape, ExpertShape
from jetspec_engine.models.rope import read_rope, read_rotary_share

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
# What a family's traits say is taken over under the same names.
SHARED_TRAITS = (
    "family", "has_qkv_bias", "has_o_bias", "has_qk_norm", "sliding_windows", "has_attention_gate",
    "is_norm_zero_centred", "experts", "delta",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Everything the decoder's forward and the weight loader need to know. Made by ``from_folder``, which checks it.

    Attributes:
        family: llama (Mistral reads as that, with windows), qwen2, qwen3, qwen3_moe, qwen3_next or qwen3_5.
        num_kv_heads: divides num_heads.
        head_dim: even; num_heads * head_dim need not equal hidden_size.
        rope_theta: base of the rotary frequencies.
        rope_scaling: None, ``{"rope_type": "linear", "factor"}`` or ``{"rope_type": "llama3", "factor",
            "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}``.
        has_qkv_bias, has_o_bias: biases of the attention projections.
        has_qk_norm: RMS norm over each head of q and k before the rotation, with rms_norm_eps.
        is_embedding_tied: the LM head is the embedding.
        sliding_windows: per layer, None or the number w of keys a query sees: positions p - w + 1 .. p.
        bos_token_id: None when the model has none.
        eos_token_ids: ids that end a text: generation_config.json's first, then config.json's.
        model_type: as in the file.
        rotary_dim: leading dimensions of a head that are rotated, even; None for all.
        has_attention_gate: the query projection also gives a gate for the attention's output.
        is_norm_zero_centred: norms of states, queries and keys multiply by 1 + weight.
        experts: the mixture-of-experts MLPs, None without.
        delta: the Gated DeltaNet layers, None without.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int
    has_qkv_bias: bool
    has_o_bias: bool
    has_qk_norm: bool
    is_embedding_tied: bool
    sliding_windows: tuple[int | None, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    model_type: str
    rotary_dim: int | None = None
    has_attention_gate: bool = False
    is_norm_zero_centred: bool = False
    experts: ExpertShape | None = None
    delta: DeltaShape | None = None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that keep keys and values, in order."""
        return tuple(layer for layer in range(self.num_layers) if not self.is_delta(layer))

    @property
    def is_dense(self) -> bool:
        """Whether every layer attends and has one MLP."""
        return self.delta is None and self.experts is None

    def is_delta(self, layer: int) -> bool:
        """Whether a layer is a Gated DeltaNet."""
        return self.delta is not None and self.delta.layers[layer]

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer's MLP is a mixture of experts."""
        return self.experts is not None and self.experts.layers[layer]

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read ``config.json`` and, where present, ``generation_config.json``.

        Args:
            folder: a Hugging Face model folder.

        Raises:
            ArtifactError: a missing or unreadable file, an unsupported architecture, or a bad value; the message
                names file, key, value and expectation.
        """
        whole = JsonFile.read(Path(folder) / CONFIG_FILE)
        file = text_config(whole)
        read_traits = find_family(file)
        _check_supported(whole, file)
        num_layers = file.integer("num_hidden_layers", 1, 1000)
        traits = read_traits(file, num_layers)
        vocab_size = file.integer("vocab_size", 1, 10_000_000)
        rope_theta, rope_scaling = read_rope(file)
        shared = {key: getattr(traits, key) for key in SHARED_TRAITS}
        return cls(
            vocab_size=vocab_size,
            num_layers=num_layers,
            intermediate_size=_read_inner_size(file, traits),
            rms_norm_eps=file.number("rms_norm_eps", 0.0, 1.0, default=1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            max_position_embeddings=file.integer("max_position_embeddings", 2, 1 << 30, default=2048),
            is_embedding_tied=file.flag("tie_word_embeddings", default=False),
            bos_token_id=file.integer("bos_token_id", 0, vocab_size - 1, default=None),
            eos_token_ids=_read_eos(file, Path(folder), vocab_size),
            model_type=str(file.values["model_type"]),
            **shared,
            **_read_heads(file, traits),
        )


def _check_supported(whole: JsonFile, file: JsonFile) -> None:
    """Refuse what the forward would silently compute wrongly; ``file`` is the text model's part of ``whole``."""
    architectures = whole.values.get("architectures") or []
    is_list = isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)
    wanted = ("ForCausalLM",) if file is whole else ("ForCausalLM", "ForConditionalGeneration")
    if not is_list or (architectures and not any(name.endswith(wanted) for name in architectures)):
        is_head = "dflash_config" in whole.values or "DFlash" in str(architectures)
        hint = "this folder holds a draft head: pass it as the head, not as the target" if is_head else ""
        whole.refuse("architectures", "a ..." + " or ...".join(wanted), hint=hint)
    file.choice("hidden_act", ("silu",), default="silu")
    for part in (whole, file):
        if part.values.get("quantization_config") is not None:
            part.refuse("quantization_config", "none (quantised weights are not supported)")


def _read_inner_size(file: JsonFile, traits: Traits) -> int:
    """Return the dense MLPs' inner size; files without dense MLPs need not give one, and get an expert's."""
    if traits.experts is not None and all(traits.experts.layers):
        return traits.experts.inner_size
    inner_size: int = file.integer("intermediate_size", 1, 10_000_000)
    return inner_size


def _read_heads(file: JsonFile, traits: Traits) -> dict[str, Any]:
    """Return hidden size, head counts and rotated dimensions, checked against each other."""
    hidden_size = file.integer("hidden_size", 1, 1_000_000)
    num_heads = file.integer("num_attention_heads", 1, 10_000)
    num_kv_heads = file.integer("num_key_value_heads", 1, num_heads, default=num_heads)
    if num_heads % num_kv_heads:
        file.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    default = traits.default_head_dim or hidden_size // num_heads
    if file.values.get("head_dim") is None and traits.default_head_dim is None and hidden_size % num_heads:
        file.refuse("hidden_size", f"a multiple of num_attention_heads ({num_heads}), or a head_dim")
    head_dim = file.integer("head_dim", 2, 65_536, default=default)
    if head_dim % 2:
        file.refuse("head_dim", "an even number: the rotary embedding turns pairs")
    rotary_dim = int(head_dim * read_rotary_share(file, traits.default_rotary_share))
    if rotary_dim < 2 or rotary_dim % 2:
        file.refuse("partial_rotary_factor", f"an even number of the {head_dim} dimensions of a head, at least 2")
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rotary_dim": None if rotary_dim == head_dim else rotary_dim,
    }


def _read_eos(config: JsonFile, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the end ids of both files, without repeats; either file may give one id, a list or nothing."""
    path = folder / GENERATION_FILE
    found: dict[int, None] = {}
    for file in ([JsonFile.read(path)] if path.exists() else []) + [config]:
        value = file.values.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
                file.refuse("eos_token_id", f"ids in [0, {vocab_size - 1}] (vocab_size {vocab_size})")
            found[token_id] = None
    return tuple(found)
