"""Pairs that SGLang results were made with: python -m tests.measure.sglang_pairs windowed|padded OUT.

``windowed``: a tiny random target with a window in every other layer (SGLang's Mellum class, all dense) and a random
head for it. Few tokens can ever win, so the head's eight candidates hold the right one about every other time.
``padded``: the demo pair with one more group of attention heads, all zero: the same function, which two GPUs can share.
The demo pair must be in the model cache; its tokenizer is the windowed target's too.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.measure.common import cache_dir
from torch import Tensor

from jetspec_engine.draft.shipped import shipped_head_folder

TARGET_NAME = "smollm2-135m"
LAYERS, HEAD_LAYERS, HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 6, 2, 256, 49152, 8, 4, 64
WINDOW, BLOCK, SEED = 24, 16, 7
LIVE = [1000 + 37 * place for place in range(16)]
WEIGHTS = "model.safetensors"
SHARED: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
WINDOWED = SHARED | {
    "architectures": ["MellumForCausalLM"], "model_type": "mellum", "num_hidden_layers": LAYERS,
    "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "mlp_layer_types": ["dense"] * LAYERS, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE},
}  # fmt: skip
WINDOWED_HEAD = SHARED | {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": HEAD_LAYERS,
    "block_size": BLOCK, "num_target_layers": LAYERS, "rope_theta": 10000.0, "use_sliding_window": False,
    "sliding_window": None, "layer_types": ["full_attention"] * HEAD_LAYERS, "max_window_layers": HEAD_LAYERS,
    "is_causal": True,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3], "causal": True, "causal_head": True},
}  # fmt: skip


def main() -> None:
    """Make the pair asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=("windowed", "padded"))
    parser.add_argument("out", type=Path, help="gets target/ and head/")
    options = parser.parse_args()
    (make_windowed if options.kind == "windowed" else make_padded)(options.out)


def make_windowed(out: Path) -> None:
    """Write the windowed pair."""
    torch.manual_seed(SEED)
    lm_head = torch.zeros(VOCAB, HIDDEN)
    lm_head[LIVE] = torch.randn(len(LIVE), HIDDEN) * 0.5
    target = dict(_layers(LAYERS, "model.")) | {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": lm_head,
    }  # fmt: skip
    head = dict(_layers(HEAD_LAYERS, "")) | {
        "fc.weight": _weight(HIDDEN, 2 * HIDDEN), "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }  # fmt: skip
    for name, config, tensors in (("target", WINDOWED, target), ("head", WINDOWED_HEAD, head)):
        _write(out / name, config, {key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(cache_dir() / TARGET_NAME / name, out / "target" / name)


def make_padded(out: Path) -> None:
    """Write the demo pair with a group of zero heads more in every layer."""
    head = shipped_head_folder(TARGET_NAME)
    assert head is not None
    for name, folder in (("target", cache_dir() / TARGET_NAME), ("head", head)):
        config = json.loads((folder / "config.json").read_text())
        kv_heads, width = config["num_key_value_heads"], config["head_dim"]
        group = config["num_attention_heads"] // kv_heads
        config |= {"num_attention_heads": group * (kv_heads + 1), "num_key_value_heads": kv_heads + 1}
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        _write(out / name, config, {key: _padded(key, tensor, group, width) for key, tensor in tensors.items()})
        for file in folder.iterdir():
            if file.name != "config.json" and not file.name.endswith((".safetensors", ".index.json")):
                shutil.copy(file, out / name / file.name)


def _padded(name: str, weight: Tensor, group: int, width: int) -> Tensor:
    rows = {"q_proj.weight": group * width, "k_proj.weight": width, "v_proj.weight": width}
    more = rows.get(".".join(name.rsplit(".", 2)[-2:]))
    if more is not None:
        return torch.cat([weight, weight.new_zeros(more, weight.shape[1])])
    if name.endswith("o_proj.weight"):
        return torch.cat([weight, weight.new_zeros(weight.shape[0], group * width)], dim=1)
    return weight


def _layers(count: int, prefix: str) -> Iterator[tuple[str, Tensor]]:
    # Attention is made strong, so that what a window hides is missed.
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (2 * HIDDEN, HIDDEN), "mlp.up_proj": (2 * HIDDEN, HIDDEN),
        "mlp.down_proj": (HIDDEN, 2 * HIDDEN),
    }  # fmt: skip
    for layer in range(count):
        for name, shape in shapes.items():
            scale = 2 if name.startswith("self_attn") else 1
            yield f"{prefix}layers.{layer}.{name}.weight", scale * _weight(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}layers.{layer}.{name}.weight", torch.ones(HIDDEN)
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}layers.{layer}.self_attn.{name}.weight", 1.5 * torch.ones(HEAD_DIM)


def _weight(*shape: int) -> Tensor:
    return torch.randn(*shape) / shape[-1] ** 0.5


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"}
    )


if __name__ == "__main__":
    main()
