"""Names and shapes of a target's tensors, from its configuration.

Knows no files. Names are Hugging Face's without the leading ``model.``; linear weights are (out, in).
"""

from jetspec_engine.models.config import DecoderConfig


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor a checkpoint must hold, with its shape, in the forward's order.

    ``lm_head.weight`` is absent when the embedding is tied.
    """
    V, E = config.vocab_size, config.hidden_size
    table: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (V, E)}
    for layer in range(config.num_layers):
        for name, shape in layer_tensors(config).items():
            table[f"layers.{layer}.{name}"] = shape
    table["norm.weight"] = (E,)
    if not config.is_embedding_tied:
        table["lm_head.weight"] = (V, E)
    return table


def layer_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return one layer's tensors with their shapes, names without ``layers.{i}.``."""
    E, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    table: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (E,)}
    for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
        table[f"self_attn.{name}_proj.weight"] = (rows, E)
        if config.has_qkv_bias:
            table[f"self_attn.{name}_proj.bias"] = (rows,)
    if config.has_qk_norm:
        table["self_attn.q_norm.weight"] = (config.head_dim,)
        table["self_attn.k_norm.weight"] = (config.head_dim,)
    table["self_attn.o_proj.weight"] = (E, q_rows)
    if config.has_o_bias:
        table["self_attn.o_proj.bias"] = (E,)
    table["post_attention_layernorm.weight"] = (E,)
    table["mlp.gate_proj.weight"] = (inner, E)
    table["mlp.up_proj.weight"] = (inner, E)
    table["mlp.down_proj.weight"] = (E, inner)
    return table
