"""A tiny random target and a random head for it, as folders SGLang loads."""

import json

import torch
from safetensors.torch import save_file

from support.sglang_configs import HEAD, TARGET


def make_pair(folder, *, window=None):
    """Write both below a folder and return their paths.

    The LM head is scaled up, so that no two logits of a text are near each other.

    Args:
        window: keys that every other layer of the target sees, its own included; None for full attention. SGLang's
            Qwen3 knows no windows; its Mellum, the same layers with windows, does.
    """
    torch.manual_seed(0)
    heads, kv_heads, width = (TARGET[f"{name}"] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    hidden, inner = TARGET["hidden_size"], TARGET["intermediate_size"]

    def weight(*shape):
        return torch.randn(*shape) / shape[-1] ** 0.5

    def layers(count, prefix):
        shapes = {
            "self_attn.q_proj": (heads * width, hidden), "self_attn.k_proj": (kv_heads * width, hidden),
            "self_attn.v_proj": (kv_heads * width, hidden), "self_attn.o_proj": (hidden, heads * width),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        ones = {"input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_norm": width,
                "self_attn.k_norm": width}  # fmt: skip
        for layer in range(count):
            for name, shape in shapes.items():
                yield f"{prefix}layers.{layer}.{name}.weight", weight(*shape)
            for name, size in ones.items():
                yield f"{prefix}layers.{layer}.{name}.weight", torch.ones(size)

    vocab = TARGET["vocab_size"]
    target = dict(layers(TARGET["num_hidden_layers"], "model.")) | {
        "model.embed_tokens.weight": torch.randn(vocab, hidden), "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.randn(vocab, hidden),
    }  # fmt: skip
    head = dict(layers(HEAD["num_hidden_layers"], "")) | {
        "fc.weight": weight(hidden, 2 * hidden), "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }  # fmt: skip
    target_config = {**TARGET, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
    if window is not None:
        target_config |= windowed(TARGET["num_hidden_layers"], window)
    paths = []
    head_config = {**HEAD, "torch_dtype": "float32"}
    for name, config, tensors in (("target", target_config, target), ("head", head_config, head)):
        path = folder / name
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        save_file({key: value.contiguous() for key, value in tensors.items()}, path / "model.safetensors")
        paths.append(str(path))
    return tuple(paths)


def windowed(num_layers, window):
    """Return what makes of a Qwen3 configuration one of a dense Mellum, every other layer within a window."""
    rope = {"rope_type": "default", "rope_theta": TARGET["rope_theta"]}
    return {
        "architectures": ["MellumForCausalLM"], "model_type": "mellum", "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention"] * (num_layers // 2),
        "mlp_layer_types": ["dense"] * num_layers, "attention_bias": False,
        "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
    }  # fmt: skip
