"""Phi-3 and Phi-4-mini: Llama with its projections fused in two tensors, and heads that rotate in part (LongRoPE)."""

from dataclasses import replace

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import Config, LayerNames, ModelFacts, positive
from npuserve.models.llama import dense

FUSED = LayerNames(
    q="self_attn.qkv_proj",
    k="self_attn.qkv_proj",
    v="self_attn.qkv_proj",
    gate="mlp.gate_up_proj",
    up="mlp.gate_up_proj",
)


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type phi3; the context ends where LongRoPE's long factors would begin."""
    base = dense({"rms_norm_eps": 1e-5, **config})
    window = positive(config, "sliding_window", base.context_length)
    if window < base.context_length:
        raise UnsupportedModelError(
            f"sliding_window {window} is not supported in this family; one of at least {base.context_length} is"
        )
    return replace(base, names=FUSED)
