"""Llama and everything shaped like it (SmolLM2, Mistral without a window)."""

from dataclasses import replace

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import Config, ModelFacts, positive, positive_number
from npuserve.models.rope import rotation


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type llama."""
    base = dense(config)
    bias = bool(config.get("attention_bias", False))
    return replace(base, qkv_bias=bias, o_bias=bias)


def dense(config: Config) -> ModelFacts:
    """What Llama and the families that differ from it in little have in common."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; silu is")
    if config.get("mlp_bias"):
        raise UnsupportedModelError("mlp_bias is not supported; this family is served without it")
    if config.get("use_sliding_window"):
        raise UnsupportedModelError("use_sliding_window is not supported; full attention is")
    hidden_size = positive(config, "hidden_size")
    num_heads = positive(config, "num_attention_heads")
    num_kv_heads = positive(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(f"{num_heads} query heads do not divide among {num_kv_heads} key-value heads")
    head_dim = positive(config, "head_dim", hidden_size // num_heads)
    turn = rotation(config, head_dim)
    context_length = positive(config, "max_position_embeddings", 2048)
    return ModelFacts(
        model_type=str(config.get("model_type", "llama")),
        hidden_size=hidden_size,
        num_layers=positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        norm_eps=positive_number(config, "rms_norm_eps", 1e-6),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        context_length=min(context_length, turn.context_length or context_length),
        inverse_frequencies=turn.inverse_frequencies,
        rope_gain=turn.gain,
    )
