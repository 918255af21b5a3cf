"""Tiny random models of the families whose layers are not all alike: several layers of each kind, odd sizes."""

from typing import Any

FAMILY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4, windows of 100, own and shared keys, two sizes of heads": (
        "gemma4_text",
        {
            "num_hidden_layers": 9,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 3,
            "num_attention_heads": 4,
            "global_head_dim": 64,
            "sliding_window": 100,
            "num_kv_shared_layers": 4,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 48,
            "vocab_size_per_layer_input": 300,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma4 with a place for towers, no layers' own inputs": (
        "gemma4",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "head_dim": 64,
            "global_head_dim": 64,
            "sliding_window": 300,
            "hidden_size_per_layer_input": 0,
            "pad_token_id": 299,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2, seven layers": (
        "lfm2",
        {
            "hidden_size": 192,
            "head_dim": 32,
            "num_hidden_layers": 7,
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2, heads of 64, four taps with biases": (
        "lfm2",
        {
            "hidden_size": 160,
            "head_dim": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "num_hidden_layers": 4,
            "full_attn_idxs": [1, 3],
            "conv_L_cache": 4,
            "conv_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "phi3, LongRoPE on three quarters of a head": (
        "phi3",
        {
            "hidden_size": 160,
            "head_dim": 32,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 600,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.05 * index for index in range(12)],
                "long_factor": [2.0 + index for index in range(12)],
                "original_max_position_embeddings": 600,
            },
        },
    ),
    "phi3, plain": ("phi3", {"hidden_size": 192, "head_dim": 32}),
    "qwen3.5, two value heads for a key head": (
        "qwen3_5_text",
        {
            "num_hidden_layers": 6,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
            "head_dim": 64,
            "num_attention_heads": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 40,
        },
    ),
    "qwen3.5, heads that DSTEP takes": (
        "qwen3_5_text",
        {
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "head_dim": 64,
            "num_attention_heads": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 40,
        },
    ),
    "smollm3, every fourth layer without positions": ("smollm3", {"num_hidden_layers": 8}),
    "smollm3, an irregular list of layers": (
        "smollm3",
        {"num_hidden_layers": 5, "no_rope_layers": [0, 1, 1, 0, 0], "head_dim": 64, "tie_word_embeddings": True},
    ),
}
