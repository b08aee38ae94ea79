"""Tiny random draft heads, their configuration documents, and a drafter whose logits can be read."""

from typing import Any

import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.head_drafter import HeadDrafter, HeadSession
from jetspec_engine.protocol import SlotRegion
from jetspec_engine.records import GenerateRequest

VOCAB, HIDDEN, BLOCK, MASK = 50, 16, 5, 3


def head_document(**changes: Any) -> dict[str, Any]:
    """A sound ``config.json`` in the public format; a change to None removes the key, dots reach nested keys."""
    document: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "block_size": BLOCK,
        "num_target_layers": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2], "causal_head": True},
    }
    for name, value in changes.items():
        block, key = document, name
        while "__" in key:
            outer, key = key.split("__", 1)
            block = block.setdefault(outer, {})
        if value is None:
            block.pop(key, None)
        else:
            block[key] = value
    return document


def tiny_head(config: HeadConfig | None = None, seed: int = 0) -> DraftHead:
    """A head with random weights, norms included."""
    torch.manual_seed(seed)
    head = DraftHead(config or HeadConfig.from_mapping(head_document())).requires_grad_(False)
    for parameter in head.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
        else:
            parameter.mul_(1.5)
    return head


class DraftRig:
    """A drafter over random target weights; ``logits`` holds what its LM head gave, one entry a propose."""

    def __init__(self, head: DraftHead, *, num_slots: int = 200, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(7)
        self.embedding = torch.randn(head.config.vocab_size, head.config.hidden_size, generator=generator)
        self.lm_weight = torch.randn(head.config.vocab_size, head.config.hidden_size, generator=generator)
        self.embedded_ids: list[list[int]] = []
        self.logits: list[Tensor] = []
        self.head = head
        self.drafter = HeadDrafter(
            head, head.config, self._embed, self._lm_head, num_slots=num_slots, device="cpu", dtype=dtype
        )

    def _embed(self, ids: Tensor) -> Tensor:
        self.embedded_ids.append(ids.tolist())
        return self.embedding[ids]

    def _lm_head(self, x: Tensor) -> Tensor:
        self.logits.append(x.float() @ self.lm_weight.T)
        return self.logits[-1]

    def session(self, tapped: Tensor | None = None, *, start: int = 0, capacity: int = 60) -> HeadSession:
        """Open a sequence and give it committed states."""
        session = self.drafter.open(
            GenerateRequest(request_id="r", input_ids=(1,)), SlotRegion(start=start, capacity=capacity)
        )
        if tapped is not None:
            self.extend(session, tapped)
        return session

    def extend(self, session: HeadSession, tapped: Tensor) -> None:
        """Append committed states, with ids that do not matter."""
        self.drafter.extend(session, [0] * len(tapped), tapped)

    def draft(self, session: HeadSession, anchor: int = 9, width: int = 4) -> Tensor:
        """Propose for one session and return its (D, V) logits."""
        self.drafter.propose([session], [anchor], width)
        return self.logits[-1]


def tapped_states(config: HeadConfig, count: int, seed: int = 1) -> Tensor:
    """Random (count, T_l * E) target states."""
    return torch.randn(count, config.tapped_size, generator=torch.Generator().manual_seed(seed))
