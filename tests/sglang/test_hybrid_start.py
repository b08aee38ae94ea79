"""A hybrid target on SGLang's command line: what is turned off with a word, and what is refused by its option."""

import functools

import pytest

from jetspec_engine.errors import ArtifactError, ConfigError
from support.sglang_configs import HEAD

TARGET = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
ROW_BYTES = 2 * 4 * 16 * 16 * 4


@pytest.fixture
def resolve(resolve):
    """Resolve a command line for the hybrid target."""
    return functools.partial(resolve, target=TARGET)


def test_prefix_reuse_is_off_with_a_word(resolve, capsys):
    arguments = resolve("--speculative-dflash-tree-width=8", "--speculative-dflash-tree-budget=16")
    assert arguments.disable_radix_cache
    assert not arguments.enable_mamba_extra_buffer()
    assert "prefixes are not reused" in capsys.readouterr().err


def test_the_facts_of_a_hybrid_target(resolve):
    from jetspec_engine.sglang_backend.compat import recurrent_facts
    from jetspec_engine.sglang_backend.recurrent.limits import GATED_DELTA

    arguments = resolve("--disable-radix-cache")
    facts = recurrent_facts(arguments, arguments.get_model_config())
    assert facts.kind == GATED_DELTA
    assert facts.backends == {"--linear-attn-backend": "triton"}
    assert facts.row_bytes == ROW_BYTES


def test_R36_kernels_that_write_states_otherwise_are_refused_for_a_tree(resolve):
    with pytest.raises(ConfigError, match="--linear-attn-decode-backend: cutedsl"):
        resolve("--linear-attn-decode-backend=cutedsl")


def test_states_beyond_the_gpus_memory_are_refused_before_anything_is_loaded(resolve, monkeypatch):
    from jetspec_engine.sglang_backend import algorithm

    monkeypatch.setattr(algorithm, "gpu_bytes", lambda _: 8 * 16 * ROW_BYTES)
    tree = ("--speculative-dflash-tree-width=8", "--speculative-dflash-tree-budget=16")
    resolve(*tree, "--max-running-requests=7")
    with pytest.raises(ConfigError, match="--max-running-requests: 8 with 16 verify rows"):
        resolve(*tree, "--max-running-requests=8")


def test_R29_a_siblings_head_is_refused_on_sglangs_own_command_line(resolve):
    with pytest.raises(ArtifactError, match="eos_token_id: 9"):
        resolve(head={**HEAD, "eos_token_id": 9})
