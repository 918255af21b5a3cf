"""Qwen3, dense: Llama with RMS norms on each head's q and k."""

from dataclasses import replace

from npuserve.models.facts import Config, LayerNames, ModelFacts
from npuserve.models.llama import dense


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type qwen3; head_dim is 128 where it is not given."""
    names = LayerNames(q_norm="self_attn.q_norm.weight", k_norm="self_attn.k_norm.weight")
    base = dense({"head_dim": 128, **config})
    bias = bool(config.get("attention_bias", False))
    return replace(base, qk_norm=True, qkv_bias=bias, o_bias=bias, names=names)
