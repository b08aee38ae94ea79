"""Tiny random targets and pools: no weights, no network, milliseconds."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import HeadBlocks, new_parameters
from jetspec_engine.training.text_pool import TextPool

CPU = torch.device("cpu")


def tiny_weights(shape: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=g) * (1.2 / size[-1] ** 0.5 if len(size) > 1 else 0.1)

    E, HD = shape.hidden_size, shape.head_dim
    out = {"embed_tokens.weight": draw(shape.vocab_size, E) * 3, "norm.weight": 1 + draw(E)}
    for i in range(shape.num_layers):
        p = f"layers.{i}."
        out[p + "input_layernorm.weight"] = 1 + draw(E)
        out[p + "post_attention_layernorm.weight"] = 1 + draw(E)
        out[p + "self_attn.q_proj.weight"] = draw(shape.num_heads * HD, E)
        out[p + "self_attn.k_proj.weight"] = draw(shape.num_kv_heads * HD, E)
        out[p + "self_attn.v_proj.weight"] = draw(shape.num_kv_heads * HD, E)
        out[p + "self_attn.o_proj.weight"] = draw(E, shape.num_heads * HD)
        out[p + "mlp.gate_proj.weight"] = draw(shape.intermediate_size, E)
        out[p + "mlp.up_proj.weight"] = draw(shape.intermediate_size, E)
        out[p + "mlp.down_proj.weight"] = draw(E, shape.intermediate_size)
    return out


@pytest.fixture(scope="session")
def target_shape() -> DecoderConfig:
    return DecoderConfig(
        family="llama", num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
        vocab_size=61, rms_norm_eps=1e-5, rope_theta=1e4, rope_scaling=None, max_position_embeddings=256,
        has_qkv_bias=False, has_o_bias=False, has_qk_norm=False, is_embedding_tied=True,
        sliding_windows=(None, None, None), bos_token_id=1, eos_token_ids=(2,), model_type="llama",
    )  # fmt: skip


@pytest.fixture(scope="session")
def target(target_shape: DecoderConfig) -> FrozenTarget:
    return FrozenTarget(tiny_weights(target_shape), target_shape, device=CPU, dtype=torch.float32, max_positions=256)


@pytest.fixture(scope="session")
def head_shape() -> HeadConfig:
    return HeadConfig(
        num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48, vocab_size=61,
        num_target_layers=3, target_layer_ids=(0, 1), rope_theta=1e4, block_size=6, rms_norm_eps=1e-5,
        max_position_embeddings=256, mask_token_id=0, is_causal=True,
    )  # fmt: skip


@pytest.fixture
def head(head_shape: HeadConfig, target: FrozenTarget) -> HeadBlocks:
    scale = torch.linspace(0.5, 2, 64)
    return HeadBlocks(head_shape, target.embedding, scale, dtype=torch.float32, max_positions=256)


@pytest.fixture
def parameters(head_shape: HeadConfig) -> dict[str, Tensor]:
    return new_parameters(head_shape, seed=3)


def make_pool(rows: int = 12, width: int = 40, seed: int = 0, vocab: int = 61) -> TextPool:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, vocab, (rows, width), generator=g, dtype=torch.int32)
    starts = torch.randint(4, 9, (rows,), generator=g)
    lengths = torch.randint(24, width + 1, (rows,), generator=g)
    tokens[torch.arange(width) >= lengths[:, None]] = 0
    return TextPool(tokens, lengths, starts, torch.ones(rows, dtype=torch.bool))


@pytest.fixture(scope="session")
def pools() -> Callable[..., TextPool]:
    return make_pool


@pytest.fixture
def pool() -> TextPool:
    return make_pool()
