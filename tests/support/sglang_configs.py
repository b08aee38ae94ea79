"""Configurations of a tiny target and head, as SGLang reads them. No weights belong to them."""

TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
HEAD = {
    **TARGET, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "num_target_layers": 4, "block_size": 8,
    "layer_types": ["full_attention", "full_attention"],
    "dflash_config": {"mask_token_id": 255, "target_layer_ids": [1, 2], "causal_head": True},
}  # fmt: skip
