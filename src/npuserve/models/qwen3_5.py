"""Qwen3.5, the text side: the gated delta rule in most layers, in the others attention whose result is gated."""

from dataclasses import replace

import numpy as np

from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.models.facts import Config, DeltaFacts, LayerNames, ModelFacts, positive, text_config
from npuserve.models.llama import dense

ATTENTION = LayerNames(q_norm="self_attn.q_norm.weight", k_norm="self_attn.k_norm.weight")
DELTA = LayerNames(o="linear_attn.out_proj", conv="linear_attn.conv1d")
KINDS = {"full_attention": 0, "linear_attention": 1}
OTHER_PARTS = r"model\.visual\.|mtp\."
DEFAULTS = {"head_dim": 256, "partial_rotary_factor": 0.25, "max_position_embeddings": 32_768}


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type qwen3_5 (a text_config among others) or qwen3_5_text."""
    nested = text_config(config, tied=False)
    if nested is None:
        return _text(config, "model.")
    return replace(_text(nested, "model.language_model."), model_type="qwen3_5")


def _text(config: Config, prefix: str) -> ModelFacts:
    if config.get("attention_bias"):
        raise UnsupportedModelError("attention_bias is not supported; this family is served without it")
    base = replace(dense({**DEFAULTS, **config}), norm_offset=1.0)
    delta = DeltaFacts(
        positive(config, "linear_num_key_heads", 16),
        positive(config, "linear_num_value_heads", 32),
        positive(config, "linear_key_head_dim", 128),
        positive(config, "linear_value_head_dim", 128),
    )
    if delta.num_value_heads % delta.num_key_heads:
        raise UnsupportedModelError(
            f"{delta.num_value_heads} value heads do not divide among {delta.num_key_heads} key heads"
        )
    recurrent = replace(
        base,
        num_heads=0,
        num_kv_heads=0,
        inverse_frequencies=np.zeros(0),
        conv_taps=positive(config, "linear_conv_kernel_dim", 4),
        delta=delta,
        names=DELTA,
    )
    return replace(
        base,
        qk_norm=True,
        output_gate=True,
        names=ATTENTION,
        layer_prefix=prefix + "layers.{}.",
        embedding=f"{prefix}embed_tokens.weight",
        final_norm=f"{prefix}norm.weight",
        skipped=OTHER_PARTS,
        variants=(recurrent,),
        layer_kinds=_layer_kinds(config, base.num_layers),
    )


def _layer_kinds(config: Config, num_layers: int) -> tuple[int, ...]:
    """By default every fourth layer is attention."""
    types = config.get("layer_types")
    if types is None:
        interval = positive(config, "full_attention_interval", 4)
        return tuple(int((layer + 1) % interval != 0) for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= set(KINDS):
        raise CheckpointError(
            f"config.json: layer_types is {types!r}, but must name one of {', '.join(KINDS)} for {num_layers} layers"
        )
    return tuple(KINDS[name] for name in types)
