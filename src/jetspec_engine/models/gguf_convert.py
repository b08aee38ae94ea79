"""A Llama model in a GGUF file rewritten as a Hugging Face folder: bfloat16 safetensors, configuration, tokenizer.

Knows no network, no cache and no other family than llama. Source of the row order: llama.cpp stores the rows of q
and k with each rotary pair side by side; Hugging Face keeps the first halves of all pairs before the second ones.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.gguf_file import GgufFile
from jetspec_engine.models.gguf_tokenizer import write_tokenizer
from jetspec_engine.models.tensor_table import expected_tensors
from jetspec_engine.models.weights import SINGLE_FILE, write_weights
from jetspec_engine.records import Progress

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


def convert(gguf_path: Path, folder: Path, on_progress: Callable[[Progress], None]) -> None:
    """Write config.json, generation_config.json, the tokenizer's files and model.safetensors into ``folder``.

    Args:
        gguf_path: a llama-architecture GGUF file.
        folder: an existing empty folder; on an error it is left half-written for the caller to drop.
        on_progress: called with tensors done and in all.

    Raises:
        ArtifactError: not GGUF, another architecture, or tensors that do not fit the configuration.
    """
    gguf = GgufFile(gguf_path)
    if gguf.field("general.architecture") != "llama":
        gguf.refuse("general.architecture", gguf.field("general.architecture"), "llama")
    write_config(gguf, folder)
    config = DecoderConfig.from_folder(folder)
    write_tokenizer(gguf, folder)
    tensors = read_tensors(gguf, config, on_progress)
    named = {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in tensors.items()}
    write_weights(named, folder / SINGLE_FILE)


def write_config(gguf: GgufFile, folder: Path) -> None:
    """Write config.json and generation_config.json."""
    names = {name for name, _ in gguf.shapes()}
    special = {
        "bos_token_id": gguf.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.field("tokenizer.ggml.padding_token_id"),
    }
    hidden_size, num_heads = gguf.field("llama.embedding_length"), gguf.field("llama.attention.head_count")
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.field("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": gguf.field("llama.feed_forward_length"),
        "num_hidden_layers": gguf.field("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": gguf.field("llama.attention.head_count_kv", default=num_heads),
        "head_dim": gguf.field("llama.rope.dimension_count", default=hidden_size // num_heads),
        "hidden_act": "silu",
        "max_position_embeddings": gguf.field("llama.context_length"),
        "rms_norm_eps": shortest(gguf.field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(gguf.field("llama.rope.freq_base", default=10_000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "bfloat16",
        **special,
    }
    (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(special, indent=1) + "\n", "utf-8")


def shortest(value: float) -> float:
    """Return the shortest decimal that reads as the same float32 (1e-05 for 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def read_tensors(
    gguf: GgufFile, config: DecoderConfig, on_progress: Callable[[Progress], None]
) -> dict[str, torch.Tensor]:
    """Return every tensor in bfloat16 under the loader's names, q and k rows in Hugging Face's order."""
    expected = expected_tensors(config)
    tensors: dict[str, torch.Tensor] = {}
    for gguf_name, values in gguf.tensors():
        name = rename(gguf_name)
        if expected.get(name) != tuple(values.shape):
            gguf.refuse(gguf_name, tuple(values.shape), f"shape {expected.get(name, 'of no such tensor')}")
        is_rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        tensors[name] = (unpermute(values, config.head_dim) if is_rotated else values).to(torch.bfloat16)
        on_progress(Progress(label="converting", done=len(tensors), total=len(expected), unit="tensors"))
    missing = [name for name in expected if name not in tensors]
    if missing:
        gguf.refuse(missing[0], "missing", f"a tensor ({len(missing)} missing in all)")
    return tensors


def rename(gguf_name: str) -> str:
    """Return the loader's name of a GGUF tensor: ``blk.3.attn_q.weight`` is ``layers.3.self_attn.q_proj.weight``."""
    parts = gguf_name.split(".")
    if parts[0] == "blk" and len(parts) == 4:
        return f"layers.{parts[1]}.{LAYER_NAMES.get(parts[2], parts[2])}.{parts[3]}"
    return ".".join([TOP_NAMES.get(parts[0], parts[0]), *parts[1:]])


def unpermute(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder (H * head_dim, E) rows within each head: row 2i + j becomes row j * head_dim / 2 + i."""
    heads = rows.view(-1, head_dim // 2, 2, rows.shape[1])
    return heads.transpose(1, 2).reshape(rows.shape)
