"""Tiny targets with random weights, one of each family beyond the dense ones, made in a second from a fixed seed.

``--target random:qwen3-next`` decodes nonsense through every mechanism of the family: what a gate needs to judge the
engine where the real models, tens of gigabytes of them, cannot be had. The same family always gives the same bits on
one version of torch. Knows shapes and scales; the files are written like any checkpoint and read back like one.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.models.config import CONFIG_FILE, DecoderConfig
from jetspec_engine.models.random_names import random_folder
from jetspec_engine.models.tensor_table import expected_tensors
from jetspec_engine.models.weights import SINGLE_FILE, write_weights

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_OF_TEXT_ID, IM_START_ID, IM_END_ID, MASK_ID = range(4)
VOCAB_SIZE = len(SPECIAL_TOKENS) + 256
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": IM_END_ID,
    "pad_token_id": END_OF_TEXT_ID,
}
EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}
SHARED: Mapping[str, Any] = {"shared_expert_intermediate_size": 32}
DELTA: Mapping[str, Any] = {
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
INNER: Mapping[str, Any] = {"intermediate_size": 96}
ARCHITECTURES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "qwen3-moe": (
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {**EXPERTS, **INNER, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "qwen3-next": ("qwen3_next", "Qwen3NextForCausalLM", {**EXPERTS, **SHARED, **DELTA, **INNER}),
    "qwen3.5": ("qwen3_5_text", "Qwen3_5ForCausalLM", {**DELTA, **INNER}),
    "qwen3.5-moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {**EXPERTS, **SHARED, **DELTA}),
}


def make_random_target(name: str, cache_dir: Path) -> Path:
    """Write a family's target into the cache and return its folder; nothing is written when it is there.

    Args:
        name: ``random:`` and a family of ``random_names.RANDOM_FAMILIES``.
        cache_dir: folder of models.
    """
    folder = random_folder(name, cache_dir)
    if (folder / CONFIG_FILE).is_file():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache_dir))
    try:
        write_random_target(making, name.partition(":")[2])
        making.chmod(0o755)
        making.rename(folder)
    except OSError:
        # Another process was faster: its folder has the same content.
        if not (folder / CONFIG_FILE).is_file():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def write_random_target(
    folder: Path, family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> DecoderConfig:
    """Write a family's configuration, weights and tokenizer into a folder and return the configuration as read back.

    Args:
        folder: exists.
        family: one of ``ARCHITECTURES``.
        seed: of the weights.
        dtype: of the stored weights.
        changes: keys of ``config.json`` that differ.
    """
    model_type, architecture, own = ARCHITECTURES[family]
    values = {"architectures": [architecture], "model_type": model_type, **COMMON, **own, **changes}
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=1))
    config = DecoderConfig.from_folder(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(config, seed).items()}
    named = {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in tensors.items()}
    write_weights(named, folder / SINGLE_FILE)
    write_byte_tokenizer(folder)
    return config


def random_tensors(config: DecoderConfig, seed: int) -> dict[str, Tensor]:
    """Return every tensor in float32, scaled so that greedy texts vary, and long pasts matter to them."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("A_log"):
            # Heads that forget within a few tokens beside heads that remember hundreds.
            tensor = torch.linspace(math.log(0.01), math.log(1.0), shape[0]) + 0.1 * noise
        elif name.endswith("dt_bias"):
            tensor = 0.3 * noise - 1.0
        elif name.endswith("norm.weight"):
            is_centred = config.is_norm_zero_centred and not name.endswith("linear_attn.norm.weight")
            tensor = 0.2 * noise if is_centred else 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            tensor = 0.3 * noise
        elif name == "embed_tokens.weight":
            # Small beside what the layers add, or a text would only ever repeat its input.
            tensor = 0.3 * noise
        else:
            tensor = 1.6 * noise / shape[-1] ** 0.5
        tensors[name] = tensor
    return tensors


def write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one id a byte, special tokens first, with a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pieces = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[IM_END_ID],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT_ID],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
