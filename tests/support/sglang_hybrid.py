"""Tiny random targets of the hybrid and expert families with a random head each, as folders SGLang loads."""

import json

import torch
from safetensors.torch import load_file, save_file

from jetspec_engine.models.random_target import write_random_target

BLOCK = 8
# What SGLang's configuration classes ask for; they place attention by an interval and read no ``layer_types``.
PLACES = {"full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"] * 2}
ROTATION = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
NEEDED = {
    "qwen3-moe": {"mlp_only_layers": [], "sliding_window": None, "use_sliding_window": False},
    "qwen3-next": {**PLACES, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3.5": {**PLACES, "rope_parameters": ROTATION},
    "qwen3.5-moe": {**PLACES, "rope_parameters": ROTATION},
}


def make_hybrid_pair(folder, family, *, dtype=torch.float32, **changes):
    """Write a family's target and a head for it below a folder; returns both paths.

    The LM head is scaled up, so that no two logits of a text are near each other.
    """
    target, head = folder / "target", folder / "head"
    target.mkdir(parents=True)
    values = {"torch_dtype": str(dtype).removeprefix("torch."), **NEEDED[family], **changes}
    write_random_target(target, family, dtype=dtype, **values)
    weights = load_file(target / "model.safetensors")
    weights["lm_head.weight"] *= 4
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    write_head(head, config, dtype)
    return str(target), str(head)


def write_head(folder, target, dtype):
    """Write a random head for a target of this configuration."""
    torch.manual_seed(0)
    hidden, width, inner = target["hidden_size"], 16, 2 * target["hidden_size"]
    heads, kv_heads, layers = 4, 2, 2
    shared = ("hidden_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id")
    config = {
        **{key: target.get(key) for key in shared}, "architectures": ["DFlashDraftModel"], "model_type": "qwen3",
        "num_hidden_layers": layers, "num_target_layers": target["num_hidden_layers"], "block_size": BLOCK,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width, "intermediate_size": inner,
        "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False,
        "layer_types": ["full_attention"] * layers, "torch_dtype": str(dtype).removeprefix("torch."),
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 2], "causal_head": True},
    }  # fmt: skip
    shapes = {"fc": (hidden, 2 * hidden)}
    for layer in range(layers):
        attention, mlp = f"layers.{layer}.self_attn.", f"layers.{layer}.mlp."
        shapes |= {
            attention + "q_proj": (heads * width, hidden), attention + "k_proj": (kv_heads * width, hidden),
            attention + "v_proj": (kv_heads * width, hidden), attention + "o_proj": (hidden, heads * width),
            mlp + "gate_proj": (inner, hidden), mlp + "up_proj": (inner, hidden), mlp + "down_proj": (hidden, inner),
        }  # fmt: skip
    ones = {"hidden_norm": hidden, "norm": hidden}
    for layer in range(layers):
        ones |= {f"layers.{layer}.input_layernorm": hidden, f"layers.{layer}.post_attention_layernorm": hidden}
        ones |= {f"layers.{layer}.self_attn.q_norm": width, f"layers.{layer}.self_attn.k_norm": width}
    tensors = {f"{name}.weight": torch.randn(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(size) for name, size in ones.items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip
