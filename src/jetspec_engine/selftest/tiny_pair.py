"""A tiny random target, draft head and tokenizer that belong together, made in memory in milliseconds.

Small enough for seconds, rich enough for faults to show: several layers of which one has a sliding window, grouped
query heads, two taps, and a vocabulary so small that a random head is right now and then. Pairs of ids share their
row of the LM head, so that logits tie bit by bit.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.errors import RequestError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tensor_table import expected_tensors

VOCAB_SIZE = 40
EOS_ID, MASK_ID = 1, 2
CONTEXT = 160
DEPTH = 5
TAPS = (0, 2)
# These ids have the logits of the ids TWIN_DISTANCE below them.
TWINS, TWIN_DISTANCE = range(28, VOCAB_SIZE), 20
PIECES = string.ascii_letters[:VOCAB_SIZE]

TARGET = DecoderConfig(
    family="qwen3",
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=CONTEXT,
    has_qkv_bias=False,
    has_o_bias=False,
    has_qk_norm=True,
    is_embedding_tied=False,
    sliding_windows=(None, 8, None),
    bos_token_id=None,
    eos_token_ids=(EOS_ID,),
    model_type="qwen3",
)
HEAD = HeadConfig(
    num_layers=2,
    hidden_size=TARGET.hidden_size,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=VOCAB_SIZE,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=CONTEXT,
    block_size=DEPTH + 1,
    mask_token_id=MASK_ID,
    target_layer_ids=TAPS,
    num_target_layers=TARGET.num_layers,
    is_causal=True,
    eos_token_ids=(EOS_ID,),
)


def target_weights(dtype: torch.dtype, seed: int = 4) -> dict[str, Tensor]:
    """Return the target's tensors; scales and seed were chosen among a few so that greedy texts vary, and end."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_tensors(TARGET).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            weights[name] = (1.0 + 0.2 * noise).to(dtype)
        else:
            scale = 3.0 if "proj" in name else 0.6 if name == "embed_tokens.weight" else 2.0
            weights[name] = (scale * noise / shape[-1] ** 0.5).to(dtype)
    head = weights["lm_head.weight"]
    head[list(TWINS)] = head[[token - TWIN_DISTANCE for token in TWINS]]
    return weights


def draft_head() -> DraftHead:
    """Return the head in float32."""
    generator = torch.Generator().manual_seed(1)
    with torch.device("meta"):
        head = DraftHead(HEAD)
    weights = {}
    for name, parameter in head.state_dict().items():
        noise = torch.randn(parameter.shape, generator=generator)
        weights[name] = 1.0 + 0.3 * noise if noise.ndim == 1 else 1.5 * noise / noise.shape[-1] ** 0.5
    head.load_state_dict(weights, assign=True)
    return head.requires_grad_(False)


@dataclass(kw_only=True)
class TinyTokenizer:
    """One letter a token id; implements ``protocol.Tokenizer`` for requests that come as ids."""

    vocab_size: int = VOCAB_SIZE
    eos_token_ids: tuple[int, ...] = (EOS_ID,)
    bos_token_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Return each letter's id."""
        return [PIECES.index(letter) for letter in text]

    def encode_rendered(self, text: str) -> list[int]:
        """Return each letter's id."""
        return self.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the letters."""
        pieces = (self.token_bytes(token, skip_special_tokens=skip_special_tokens) for token in token_ids)
        return b"".join(pieces).decode()

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """Return a token's letter."""
        return b"" if skip_special_tokens and token_id in (EOS_ID, MASK_ID) else PIECES[token_id].encode()

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:  # noqa: ARG002
        """Refuse: there is no template."""
        raise RequestError("messages: the tiny pair has no chat template")
