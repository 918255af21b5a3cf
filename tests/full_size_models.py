"""The configurations of the models behind the catalog's short names, as their config.json files have them."""

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"


def _qwen3_5(
    hidden_size: int, intermediate_size: int, num_layers: int, heads: int, kv_heads: int, value_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "vocab_size": 248_320,
        "rms_norm_eps": 1e-6,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (num_layers // 4),
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": True,
    }


def _gemma4(hidden_size: int, layer_types: list[str], kv_heads: int, num_shared: int, *, wide: bool) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text",
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_attention_heads": 8,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": wide,
        "hidden_size_per_layer_input": 256,
        "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    }


def _lfm2(hidden_size: int, intermediate_size: int, heads: int, kv_heads: int, kinds: str) -> dict[str, Any]:
    """`kinds` has a letter for each layer: c for a convolution, A for attention."""
    return {
        "model_type": "lfm2",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": len(kinds),
        "layer_types": ["full_attention" if kind == "A" else "conv" for kind in kinds],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "conv_L_cache": 3,
        "conv_bias": False,
        "vocab_size": 65_536,
        "norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "max_position_embeddings": 128_000,
        "tie_word_embeddings": True,
    }


FULL_SIZE_MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "smollm3": {
        "model_type": "smollm3",
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "no_rope_layer_interval": 4,
        "vocab_size": 128_256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6},
        "max_position_embeddings": 65_536,
        "tie_word_embeddings": True,
    },
    "phi4-mini": {
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 200_064,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.75,
            # The real lists have a number of their own for each pair.
            "short_factor": [1.0] * 48,
            "long_factor": [1.5] * 48,
            "original_max_position_embeddings": 4096,
        },
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131_072,
        "sliding_window": 262_144,
        "tie_word_embeddings": True,
    },
    "lfm2": _lfm2(1024, 2560, 16, 8, "ccAcAcAcAcAcAc"),
    "lfm2-2.6b": _lfm2(2048, 10_752, 32, 8, "ccAccAcccAcccAcccAcccAccAccAcc"),
    "qwen35": _qwen3_5(1024, 3584, 24, 8, 2, 16),
    "qwen35-2b": _qwen3_5(2048, 6144, 24, 8, 2, 16),
    "qwen35-4b": _qwen3_5(2560, 9216, 32, 16, 4, 32),
    "gemma4": _gemma4(1536, ([_SLIDING] * 4 + [_FULL]) * 7, 1, 20, wide=True),
    "gemma4-e4b": _gemma4(2560, ([_SLIDING] * 5 + [_FULL]) * 7, 2, 18, wide=False),
}
"""By the short names of the catalog. Text sides only; sizes are the public checkpoints'."""
