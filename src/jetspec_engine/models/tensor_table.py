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
        for name, shape in layer_tensors(config, layer).items():
            table[f"layers.{layer}.{name}"] = shape
    table["norm.weight"] = (E,)
    if not config.is_embedding_tied:
        table["lm_head.weight"] = (V, E)
    return table


def layer_tensors(config: DecoderConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return one layer's tensors with their shapes, names without ``layers.{i}.``."""
    norms = dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (config.hidden_size,))
    mixer = delta_tensors(config) if config.is_delta(layer) else attention_tensors(config)
    feed = expert_tensors(config) if config.is_sparse(layer) else mlp_tensors("mlp", config, config.intermediate_size)
    first, second = norms.items()
    return dict([first, *mixer.items(), second, *feed.items()])


def attention_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of an attention layer; a gated one has a gate row beside each query row."""
    E = config.hidden_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    table: dict[str, tuple[int, ...]] = {}
    for name, rows in (("q", 2 * q_rows if config.has_attention_gate else q_rows), ("k", kv_rows), ("v", kv_rows)):
        table[f"self_attn.{name}_proj.weight"] = (rows, E)
        if config.has_qkv_bias:
            table[f"self_attn.{name}_proj.bias"] = (rows,)
    if config.has_qk_norm:
        table["self_attn.q_norm.weight"] = (config.head_dim,)
        table["self_attn.k_norm.weight"] = (config.head_dim,)
    table["self_attn.o_proj.weight"] = (E, q_rows)
    if config.has_o_bias:
        table["self_attn.o_proj.bias"] = (E,)
    return table


def delta_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Gated DeltaNet layer."""
    shape, E = config.delta, config.hidden_size
    assert shape is not None
    if shape.is_grouped:
        rows = {"qkvz": shape.conv_channels + shape.value_size, "ba": 2 * shape.num_value_heads}
    else:
        heads = shape.num_value_heads
        rows = {"qkv": shape.conv_channels, "z": shape.value_size, "b": heads, "a": heads}
    table: dict[str, tuple[int, ...]] = {f"linear_attn.in_proj_{name}.weight": (n, E) for name, n in rows.items()}
    table["linear_attn.conv1d.weight"] = (shape.conv_channels, 1, shape.conv_size)
    table["linear_attn.dt_bias"] = table["linear_attn.A_log"] = (shape.num_value_heads,)
    table["linear_attn.norm.weight"] = (shape.value_dim,)
    table["linear_attn.out_proj.weight"] = (E, shape.value_size)
    return table


def expert_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a mixture of experts, every expert's under its own name (see ``expert_names``)."""
    shape, E = config.experts, config.hidden_size
    assert shape is not None
    table: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (shape.num_experts, E)}
    for expert in range(shape.num_experts):
        table |= mlp_tensors(f"mlp.experts.{expert}", config, shape.inner_size)
    if shape.shared_size is not None:
        table |= mlp_tensors("mlp.shared_expert", config, shape.shared_size)
        table["mlp.shared_expert_gate.weight"] = (1, E)
    return table


def mlp_tensors(prefix: str, config: DecoderConfig, inner_size: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one gated MLP."""
    E = config.hidden_size
    return {
        f"{prefix}.gate_proj.weight": (inner_size, E),
        f"{prefix}.up_proj.weight": (inner_size, E),
        f"{prefix}.down_proj.weight": (E, inner_size),
    }
