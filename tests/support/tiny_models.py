"""Tiny random targets and a tiny tokenizer, written as Hugging Face folders in milliseconds, without transformers.

For every test that needs a model: the decoder's, the engine's and the server's. The weights are random but scaled so
that greedy texts vary instead of looping at once; the same arguments give the same bits.

    folder = make_tiny_target(tmp_path / "target")                      # Llama, tied, with a tokenizer
    folder = make_tiny_target(tmp_path / "target", model_type="qwen3", is_tied=False, sliding_window=16)
    reference = load_with_transformers(folder)                          # slow import; for oracle tests only
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tensor_table import expected_tensors

TINY_VOCAB_SIZE = 320
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_OF_TEXT_ID, IM_START_ID, IM_END_ID, MASK_ID = range(4)
MERGES = (
    "Ġ t|h e|Ġ a|i n|o n|r e|e r|Ġt he|a t|Ġ s|o r|e n|e s|Ġ w|a n|i t|o u|Ġ c|i s|n d|Ġ b|Ġ f|a r|in g|e d|Ġ p|Ġa nd|"
    "Ġ m|a l|o f|Ġ of|Ġt o|l e|Ġ in|r o|a s|i c|Ġ d|l l|v e|Ġ h|o m|Ġ o|u t|o t|Ġ is|s t|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ|c h|Ġ n|l o|e l|"
    "Ġ e|g e|e t|Ġ th|u r|Ġ y|i d|a y"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tiny_target(
    folder: Path,
    *,
    model_type: str = "llama",
    seed: int = 0,
    num_layers: int = 2,
    is_tied: bool = True,
    has_bias: bool = False,
    sliding_window: int | None = None,
    vocab_size: int = TINY_VOCAB_SIZE,
    max_position_embeddings: int = 512,
    dtype: torch.dtype = torch.float32,
    num_shards: int = 1,
    with_tokenizer: bool = True,
    **config_overrides: Any,
) -> Path:
    """Write a random target into ``folder`` and return it.

    Args:
        model_type: llama, mistral, qwen2 or qwen3.
        has_bias: attention biases, for llama and qwen3 (qwen2 always has its own).
        sliding_window: for mistral on every layer, for qwen2 and qwen3 on every second layer; llama has none.
        num_shards: 1 writes model.safetensors, more write shards with an index.
        config_overrides: further keys of config.json, e.g. ``rope_scaling={...}``, ``num_key_value_heads=1``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = tiny_config(model_type, num_layers=num_layers, sliding_window=sliding_window, has_bias=has_bias)
    values |= {"vocab_size": vocab_size, "tie_word_embeddings": is_tied}
    values |= {"max_position_embeddings": max_position_embeddings, "torch_dtype": str(dtype).removeprefix("torch.")}
    values |= config_overrides
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    config = DecoderConfig.from_folder(folder)
    write_checkpoint(folder, random_tensors(config, seed=seed, dtype=dtype), num_shards=num_shards)
    if with_tokenizer:
        write_tiny_tokenizer(folder)
    return folder


def tiny_config(
    model_type: str, *, num_layers: int = 2, sliding_window: int | None = None, has_bias: bool = False
) -> dict[str, Any]:
    """Return the items of a tiny config.json: E 48, 4 heads over 2 KV heads of 16 (so H * head_dim != E)."""
    values: dict[str, Any] = {
        "architectures": [model_type.capitalize() + "ForCausalLM"],
        "model_type": model_type,
        "hidden_size": 48,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": IM_START_ID,
        "eos_token_id": IM_END_ID,
        "pad_token_id": END_OF_TEXT_ID,
    }
    if model_type == "mistral":
        values["sliding_window"] = sliding_window
    if model_type in ("llama", "qwen3"):
        values["attention_bias"] = has_bias
    if model_type in ("qwen2", "qwen3"):
        kinds = [
            "sliding_attention" if sliding_window and layer % 2 else "full_attention" for layer in range(num_layers)
        ]
        values |= {"use_sliding_window": sliding_window is not None, "sliding_window": sliding_window}
        values |= {"layer_types": kinds}
    return values


def random_tensors(
    config: DecoderConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return random tensors for a configuration, under the loader's names (no leading ``model.``)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            tensor = 0.3 * noise
        elif name == "embed_tokens.weight":
            # Small beside what the layers add, or a tied model would only ever repeat its input.
            tensor = 0.3 * noise
        else:
            tensor = 1.6 * noise / shape[-1] ** 0.5
        tensors[name] = tensor.to(dtype)
    return tensors


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], *, num_shards: int = 1) -> None:
    """Save tensors under Hugging Face's names, in one file or in shards with an index."""
    named = {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in tensors.items()}
    if num_shards == 1:
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(named)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: named[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in named.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tiny_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: byte-level BPE, 320 ids, a ChatML-like template."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {
        token: index for index, token in enumerate((*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    merges = []
    for merge in MERGES.split("|"):
        left, right = merge.split(" ")
        if left in vocab and right in vocab and left + right not in vocab and len(vocab) < TINY_VOCAB_SIZE:
            merges.append((left, right))
            vocab[left + right] = len(vocab)
    while len(vocab) < TINY_VOCAB_SIZE:
        vocab[f"<|unused_{len(vocab)}|>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[IM_START_ID],
        "eos_token": SPECIAL_TOKENS[IM_END_ID],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT_ID],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def load_with_transformers(folder: Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Return transformers' model of a folder in eval mode, eager attention; fails on missing or unexpected tensors."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    problems = {kind: names for kind, names in report.items() if names}
    assert not problems, problems
    return model.eval()
