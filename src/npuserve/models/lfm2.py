"""LFM2: short convolutions, and in some layers attention with norms on q and k."""

from dataclasses import replace

import numpy as np

from npuserve.errors import CheckpointError
from npuserve.models.facts import Config, LayerNames, ModelFacts, positive, positive_number
from npuserve.models.llama import dense

DEFAULTS = {"rope_theta": 1e6, "tie_word_embeddings": True, "max_position_embeddings": 128_000}
RENAMED = {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
ATTENTION = LayerNames(
    input_norm="operator_norm.weight",
    o="self_attn.out_proj",
    q_norm="self_attn.q_layernorm.weight",
    k_norm="self_attn.k_layernorm.weight",
    post_norm="ffn_norm.weight",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)
CONVOLUTION = replace(ATTENTION, o="conv.out_proj", q_norm=None, k_norm=None)
KINDS = {"full_attention": 0, "conv": 1}


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type lfm2."""
    renamed = {RENAMED[key]: value for key, value in config.items() if key in RENAMED}
    config = {"rms_norm_eps": 1e-5, **DEFAULTS, **config, **renamed}
    base = dense(config)
    base = replace(base, intermediate_size=_intermediate_size(config, base.intermediate_size), names=ATTENTION)
    bias = bool(config.get("conv_bias", False))
    convolution = replace(
        base,
        num_heads=0,
        num_kv_heads=0,
        inverse_frequencies=np.zeros(0),
        conv_taps=positive(config, "conv_L_cache", 3),
        qkv_bias=bias,
        o_bias=bias,
        names=CONVOLUTION,
    )
    return replace(
        base,
        qk_norm=True,
        final_norm="model.embedding_norm.weight",
        variants=(convolution,),
        layer_kinds=_layer_kinds(config, base.num_layers),
    )


def _intermediate_size(config: Config, size: int) -> int:
    """Two thirds of the number given, times a factor, in whole multiples, where the configuration adjusts it."""
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    multiple = positive(config, "block_multiple_of", 256)
    factor = positive_number(config, "block_ffn_dim_multiplier", 1.0)
    return -(-int(factor * int(2 * size / 3)) // multiple) * multiple


def _layer_kinds(config: Config, num_layers: int) -> tuple[int, ...]:
    types = config.get("layer_types")
    if types is None:
        attention = config.get("full_attn_idxs")
        places = range(num_layers) if attention is None else attention
        types = ["full_attention" if layer in places else "conv" for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= set(KINDS):
        raise CheckpointError(
            f"config.json: layer_types is {types!r}, but must name one of {', '.join(KINDS)} for {num_layers} layers"
        )
    return tuple(KINDS[name] for name in types)
