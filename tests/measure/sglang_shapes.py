"""Shapes of published targets and heads that round times are measured at, with dummy weights, and what a round reads.

Source: the configurations of Qwen/Qwen3-8B and Qwen/Qwen3.6-35B-A3B (text part) as published. Knows sizes and the
servers that fit on one GPU; nothing of how they are measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jetspec_engine.models.layer_kinds import state_bytes

BLOCK = 16
MAX_WIDTH = 8
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False,
    "bos_token_id": 151643, "eos_token_id": 151645, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": 36, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
}  # fmt: skip
QWEN36_35B_A3B = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 2048,
    "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "vocab_size": 248320, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False, "attn_output_gate": True,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "mamba_ssm_dtype": "float32", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    "bos_token_id": None, "eos_token_id": 248044, "attention_dropout": 0.0, "initializer_range": 0.02,
    "use_cache": True,
}  # fmt: skip


def head_of(target: Mapping[str, Any], layers: tuple[int, ...], mask_token_id: int, **sizes: Any) -> dict[str, Any]:
    """Return a head's configuration: Qwen3 layers of the target's width that see these layers of it."""
    own = {key: QWEN3_8B[key] for key in QWEN3_8B if key not in ("architectures", "num_hidden_layers")}
    shared = {key: target[key] for key in ("hidden_size", "vocab_size", "bos_token_id", "eos_token_id")}
    count = len(layers)
    return {
        **own, **shared, "architectures": ["DFlashDraftModel"], "num_hidden_layers": count, "block_size": BLOCK,
        "num_target_layers": target["num_hidden_layers"], "layer_types": ["full_attention"] * count,
        "max_window_layers": count, "is_causal": True,
        "dflash_config": {"mask_token_id": mask_token_id, "target_layer_ids": list(layers)}, **sizes,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is measured at one shape.

    Attributes:
        target, head: configurations.
        budgets: of the trees.
        waves: servers by wave, those of one together on the GPU.
        anchors: servers that stay up for the next wave.
        requests: most that run at once, which sizes pools.
        backend_of_profile: whose rounds are taken apart.
        words: further words of every server's command line.
    """

    target: Mapping[str, Any]
    head: Mapping[str, Any]
    budgets: tuple[int, ...]
    waves: tuple[tuple[str, ...], ...]
    anchors: tuple[str, ...] = ()
    requests: int = 4
    words: tuple[str, ...] = field(default=())

    @property
    def lm_head_bytes(self) -> int:
        """Bytes of the LM head."""
        return 2 * self.target["vocab_size"] * self.target["hidden_size"]

    def round_bytes(self, rows: int, *, has_draft: bool) -> int:
        """Return the weights a round of so many rows must read: target, head, and the LM head once more for drafts.

        Of experts those that routing at random would choose; embeddings and states are left out.
        """
        own = self.lm_head_bytes + sum(_layer_bytes(self.target, layer, rows) for layer in _layers(self.target))
        if not has_draft:
            return own
        fused = 2 * len(self.head["dflash_config"]["target_layer_ids"]) * self.head["hidden_size"] ** 2
        drafted = sum(_layer_bytes(self.head, layer, rows) for layer in _layers(self.head))
        return own + fused + drafted + self.lm_head_bytes

    def state_bytes(self, rows: int, leaves: int) -> int:
        """Return what recurrent layers move in a verify of a tree and its commit; 0 without any.

        A leaf reads the committed state, a node's state is written, and one of them is copied.
        """
        size = _state_bytes(self.target)
        return sum(layer == "linear" for layer in _layers(self.target)) * size * (leaves + rows + 2)


def _layers(config: Mapping[str, Any]) -> list[str]:
    interval = config.get("full_attention_interval")
    return ["linear" if interval and (layer + 1) % interval else "full" for layer in range(config["num_hidden_layers"])]


def _state_bytes(config: Mapping[str, Any]) -> int:
    if "linear_num_value_heads" not in config:
        return 0
    return state_bytes(
        config["linear_num_value_heads"], config["linear_key_head_dim"], config["linear_value_head_dim"]
    )  # fmt: skip


def _layer_bytes(config: Mapping[str, Any], kind: str, rows: int) -> int:
    hidden = config["hidden_size"]
    if kind == "linear":
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        mixed = hidden * (2 * keys + 2 * values + 2 * config["linear_num_value_heads"]) + values * hidden
    else:
        query, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
        mixed = hidden * (query * (3 if config.get("attn_output_gate") else 2) + 2 * kv)
    if "num_experts" not in config:
        return 2 * (mixed + 3 * hidden * config["intermediate_size"])
    experts = config["num_experts"]
    chosen = experts * (1 - (1 - config["num_experts_per_tok"] / experts) ** rows)
    inner = chosen * config["moe_intermediate_size"] + config["shared_expert_intermediate_size"]
    return int(2 * (mixed + 3 * hidden * inner + hidden * (experts + 1)))


SHAPES = {
    "qwen3-8b": Shape(
        target=QWEN3_8B, head=head_of(QWEN3_8B, (1, 9, 17, 25, 33), 151669), budgets=(16, 32, 64, 128),
        waves=(
            ("plain-fa3", "linear-fa3", "linear-fa4", "linear-triton", "tree-fa3", "tree-fa4"),
            ("linear-flashinfer", "tree-triton"),
        ),
        anchors=("linear-fa3", "tree-fa3"),
    ),
    # 70 GB of weights and 4 GB of states of a 64-node tree for each request: one server at a time.
    "qwen3.6-35b-a3b": Shape(
        target=QWEN36_35B_A3B,
        head=head_of(
            QWEN36_35B_A3B, (1, 10, 19, 28, 37), 248070, intermediate_size=6144, num_attention_heads=32,
            num_key_value_heads=4,
        ),
        budgets=(16, 64), waves=(("tree-triton",), ("linear-triton",)), requests=1,
        words=("--speculative-draft-attention-backend=fa3",),
    ),
}  # fmt: skip
