"""Gemma 4, the text side: sliding and global attention, layers that share keys and values, per-layer embeddings."""

import re
from collections.abc import Mapping
from dataclasses import replace

from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.models.facts import (
    Activation,
    Config,
    LayerFacts,
    LayerNames,
    ModelFacts,
    positive,
    positive_number,
    text_config,
)
from npuserve.models.llama import dense
from npuserve.models.rope import rotation

NAMES = LayerNames(
    q_norm="self_attn.q_norm.weight",
    k_norm="self_attn.k_norm.weight",
    post_norm="pre_feedforward_layernorm.weight",
    after_attention="post_attention_layernorm.weight",
    after_mlp="post_feedforward_layernorm.weight",
    scalar="layer_scalar",
)
ROTATIONS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
SLIDING, FULL = "sliding_attention", "full_attention"
TOWERS = r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\."


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type gemma4 (a text_config among others) or gemma4_text."""
    nested = text_config(config, tied=True)
    if nested is None:
        return _text(config, "model.")
    text = _text(nested, "model.language_model.")
    return replace(text, model_type="gemma4", skipped=f"{TOWERS}|{text.skipped}")


def _text(config: Config, prefix: str) -> ModelFacts:
    _refuse(config)
    turns = config.get("rope_parameters") or ROTATIONS
    sizes = {"tie_word_embeddings": True, "max_position_embeddings": 131_072, "head_dim": 256, **config}
    base = dense({**sizes, "rope_parameters": turns[SLIDING]})
    usual = replace(
        base,
        qk_norm=True,
        v_norm=True,
        attention_scale=1.0,
        window=positive(config, "sliding_window", 512),
        activation=Activation.GELU_TANH,
        input_size=_size_or_none(config, "hidden_size_per_layer_input", 256),
        names=NAMES,
    )
    types, num_shared = _layer_types(config, base.num_layers), _size_or_none(config, "num_kv_shared_layers", 0)
    first_shared = base.num_layers - num_shared
    owned = types[:first_shared]
    if num_shared and set(types) > set(owned):
        raise CheckpointError(f"config.json: {num_shared} layers share keys and values of a type that none before has")
    head_dim = _global_head_dim(config, types)
    turn = rotation({"rope_parameters": turns[FULL]}, head_dim)
    full = replace(
        usual,
        head_dim=head_dim,
        window=None,
        inverse_frequencies=turn.inverse_frequencies,
        rope_gain=turn.gain,
    )
    kinds: tuple[LayerFacts, ...] = (usual, full)
    if num_shared:
        kinds += tuple(_sharing(kind, config) for kind in (usual, full))
    last = {kind: first_shared - 1 - owned[::-1].index(kind) for kind in set(owned)}
    return replace(
        usual,
        layer_prefix=prefix + "layers.{}.",
        embedding=f"{prefix}embed_tokens.weight",
        final_norm=f"{prefix}norm.weight",
        embedding_scale=base.hidden_size**0.5,
        rotated=False,
        logit_cap=_cap(config),
        input_scale=usual.input_size**0.5,
        input_embedding=f"{prefix}embed_tokens_per_layer.weight",
        input_projection=f"{prefix}per_layer_model_projection.weight",
        input_norm=f"{prefix}per_layer_projection_norm.weight",
        skipped=_unused(prefix, range(first_shared, base.num_layers)),
        variants=kinds[1:],
        layer_kinds=tuple((kind == FULL) + 2 * (layer >= first_shared) for layer, kind in enumerate(types)),
        cache_layers=tuple(layer if layer < first_shared else last[kind] for layer, kind in enumerate(types)),
    )


def _sharing(kind: LayerFacts, config: Config) -> LayerFacts:
    """A layer that sees another's keys and values has a wider MLP in some checkpoints."""
    width = 2 if config.get("use_double_wide_mlp") else 1
    return replace(kind, owns_cache=False, intermediate_size=width * kind.intermediate_size)


def _unused(prefix: str, shared: range) -> str:
    """Checkpoints have keys and values of layers that see another's, too."""
    layers = "|".join(map(str, shared)) or "none"
    return rf"{re.escape(prefix)}layers\.({layers})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\."


def _refuse(config: Config) -> None:
    activation = config.get("hidden_activation", Activation.GELU_TANH.value)
    if activation != Activation.GELU_TANH.value:
        raise UnsupportedModelError(f"hidden_activation {activation!r} is not supported; gelu_pytorch_tanh is")
    for key in ("enable_moe_block", "attention_k_eq_v", "attention_bias"):
        if config.get(key):
            raise UnsupportedModelError(f"{key} is not supported; this family is served without it")
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError("use_bidirectional_attention 'all' is not supported; causal attention is")


def _layer_types(config: Config, num_layers: int) -> list[str]:
    """By default every sixth layer is global; the last one always is."""
    types = config.get("layer_types")
    if types is None:
        types = [FULL if layer % 6 == 5 else SLIDING for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= {SLIDING, FULL}:
        raise CheckpointError(
            f"config.json: layer_types is {types!r}, but must have one for each of {num_layers} layers"
        )
    return [*types[:-1], FULL]


def _global_head_dim(config: Config, types: list[str]) -> int:
    """The heads of global layers: one number, or an entry for each such layer that differs."""
    layers = config.get("per_layer_config")
    if not isinstance(layers, Mapping):
        return positive(config, "global_head_dim", 512)
    usual = positive(config, "head_dim", 256)
    places = [str(layer) for layer, kind in enumerate(types) if kind == FULL]
    sizes = {positive(layers.get(place, {}), "head_dim", usual) for place in places}
    if len(sizes) != 1:
        raise UnsupportedModelError(f"global heads of sizes {sorted(sizes)} are not supported; one size is")
    return sizes.pop()


def _size_or_none(config: Config, key: str, default: int) -> int:
    """A size that may be 0 or absent."""
    value = config.get(key, default)
    return positive({key: value}, key) if value else 0


def _cap(config: Config) -> float | None:
    if config.get("final_logit_softcapping") is None:
        return None
    return positive_number(config, "final_logit_softcapping")
