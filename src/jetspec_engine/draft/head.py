"""The draft head's weights as a module whose ``state_dict`` has exactly the public tensor names.

It owns no embedding and no LM head (those are the target's) and defines no cache and no mask: ``head_drafter`` runs it
incrementally, ``reference`` runs it slowly and obviously, training runs many blocks at once. What all of them share is
the data flow written down here:

* context: ``c = hidden_norm(fc(tapped target states))`` per committed position, the same ``c`` for every layer;
* block: the target's embedding of ``[anchor, MASK x D]`` at positions ``length .. length + D``;
* per layer: queries from the block; keys and values from ``[c ; input_layernorm(block)]`` (``c`` gets no layer norm),
  q_norm / k_norm per attention head, then RoPE at absolute positions; then a gated MLP, both residual;
* ``norm`` of the block's rows, then the target's LM head on the prediction rows.

Source: DFlash (arXiv 2602.06036) and JetSpec (arXiv 2606.18394); decoder layers in the shape of Qwen3's.
"""

import torch
from torch import nn

from jetspec_engine.draft.config import HeadConfig


class HeadAttention(nn.Module):
    """Projections and per-head norms of one layer; no forward, the callers differ in what they attend to."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)


class HeadMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., E) to (..., E)."""
        gated: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return gated


class HeadLayer(nn.Module):
    """One decoder layer's submodules under their public names."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config)
        self.mlp = HeadMlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DraftHead(nn.Module):
    """All weights of a draft head.

    Args:
        config: the head's shape. Parameters are made in the default dtype on the default device, with torch's own
            initialisation; a trainer re-initialises as it likes, the loader overwrites.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(HeadLayer(config) for _ in range(config.num_layers))
        self.fc = nn.Linear(config.tapped_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
