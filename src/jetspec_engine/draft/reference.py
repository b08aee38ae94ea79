"""The draft head's forward, slow and obvious: one position and one attention head at a time, nothing cached.

What ``head_drafter`` must equal in float32, and a definition of what the weights mean. Knows nothing of slots, batches
or speed.
"""

import math

import torch
from torch import Tensor

from jetspec_engine.draft.head import DraftHead, HeadLayer


def reference_logits(
    head: DraftHead, embedding: Tensor, lm_head: Tensor, tapped: Tensor, anchor: int, *, num_rows: int | None = None
) -> Tensor:
    """Return the (D, V) logits of one draft, recomputed from all committed positions.

    Args:
        head: weights, in float32 for comparisons.
        embedding, lm_head: (V, E) of the target.
        tapped: (T, T_l * E) target states of the committed positions 0 .. T - 1.
        anchor: the token at position T.
        num_rows: rows of the block to run, None for all D + 1; fewer give fewer predictions.
    """
    config = head.config
    rows = config.block_size if num_rows is None else num_rows
    context = [head.hidden_norm(head.fc(state)) for state in tapped]
    block = [embedding[anchor]] + [embedding[config.mask_token_id]] * (rows - 1)
    for index in range(config.num_layers):
        block = _layer(head, index, context, block)
    predicting = block[:-1] if config.is_shifted else block[1:]
    if config.is_shifted and rows < config.block_size:
        predicting = block
    return torch.stack([lm_head @ head.norm(row) for row in predicting])


def _layer(head: DraftHead, index: int, context: list[Tensor], block: list[Tensor]) -> list[Tensor]:
    config, layer = head.config, head.layers[index]
    assert isinstance(layer, HeadLayer)
    inputs = context + [layer.input_layernorm(row) for row in block]
    keys = [_heads(layer, "k", x, position, config.rope_theta) for position, x in enumerate(inputs)]
    values = [layer.self_attn.v_proj(x).view(-1, config.head_dim) for x in inputs]
    outputs = []
    for row, x in enumerate(block):
        position = len(context) + row
        seen = [p for p in range(len(inputs)) if _sees(head, index, position, p)]
        queries = _heads(layer, "q", inputs[position], position, config.rope_theta)
        attended = []
        for attention_head, query in enumerate(queries):
            group = attention_head * config.num_kv_heads // config.num_heads
            scores = torch.stack([query @ keys[p][group] for p in seen]) / math.sqrt(config.head_dim)
            weights = scores.softmax(0)
            attended.append(sum(w * values[p][group] for w, p in zip(weights, seen, strict=True)))
        middle = x + layer.self_attn.o_proj(torch.cat(attended))
        outputs.append(middle + layer.mlp(layer.post_attention_layernorm(middle)))
    return outputs


def _sees(head: DraftHead, layer: int, query: int, key: int) -> bool:
    window = head.config.window_of(layer)
    if window is not None and key <= query - window:
        return False
    return key <= query or not head.config.is_causal


def _heads(layer: HeadLayer, kind: str, x: Tensor, position: int, theta: float) -> list[Tensor]:
    """Return the normed and rotated query or key vectors of one position, one a head."""
    attention = layer.self_attn
    projection, norm = (attention.q_proj, attention.q_norm) if kind == "q" else (attention.k_proj, attention.k_norm)
    vectors = projection(x).view(-1, norm.weight.shape[0])
    return [_rotate(norm(vector), position, theta) for vector in vectors]


def _rotate(vector: Tensor, position: int, theta: float) -> Tensor:
    """Turn the pair (i, i + half) by position * theta^(-2i / head_dim)."""
    half = len(vector) // 2
    turned = vector.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(vector))
        a, b = vector[i], vector[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned
