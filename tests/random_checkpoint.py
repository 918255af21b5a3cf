"""Checkpoints of random weights, for what depends on shapes alone; `full_size_models` has shapes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SPREAD = 0.02


def write_random_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """config.json and float16 safetensors of a Llama, Qwen2, Qwen3 or Qwen3.5 shape, a file per layer; no tokenizer."""
    rng = np.random.default_rng(seed)
    hidden = config["hidden_size"]

    def matrix(*shape: int) -> np.ndarray[Any, np.dtype[np.float16]]:
        return (SPREAD * rng.standard_normal(shape, np.float32)).astype(np.float16)

    files: dict[str, str] = {}

    def save(tensors: dict[str, np.ndarray[Any, np.dtype[np.float16]]], file: str) -> None:
        save_file(tensors, folder / file)
        files.update(dict.fromkeys(tensors, file))

    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        delta = "layer_types" in config and config["layer_types"][layer] == "linear_attention"
        shapes, vectors = _delta(config) if delta else _attention(config)
        shapes |= _mlp(config)
        vectors |= dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), hidden)
        tensors = {f"{prefix}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}.{name}": np.ones(size, np.float16) for name, size in vectors.items()}
        save(tensors, f"layer-{layer:03}.safetensors")
    rest = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    rest["model.norm.weight"] = np.ones(hidden, np.float16)
    if not config["tie_word_embeddings"]:
        rest["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    save(rest, "rest.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


Shapes = dict[str, tuple[int, ...]]
Sizes = dict[str, int | tuple[int, ...]]
"""Matrices by name without `.weight`, and all else by its whole name."""


def _mlp(config: dict[str, Any]) -> Shapes:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    return {"mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden), "mlp.down_proj": (hidden, mlp)}


def _attention(config: dict[str, Any]) -> tuple[Shapes, Sizes]:
    hidden, head_dim, kind = config["hidden_size"], config["head_dim"], config["model_type"]
    heads, kv_heads = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: Shapes = {
        "self_attn.q_proj": (2 * heads if kind == "qwen3_5_text" else heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
    }
    normed = ("q_norm", "k_norm") if kind in ("qwen3", "qwen3_5_text") else ()
    return shapes, {f"self_attn.{name}.weight": head_dim for name in normed}


def _delta(config: dict[str, Any]) -> tuple[Shapes, Sizes]:
    hidden, heads, value_dim = config["hidden_size"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    values = heads * value_dim
    channels = values + 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    shapes: Shapes = {
        "linear_attn.in_proj_qkv": (channels, hidden),
        "linear_attn.in_proj_z": (values, hidden),
        "linear_attn.in_proj_b": (heads, hidden),
        "linear_attn.in_proj_a": (heads, hidden),
        "linear_attn.out_proj": (hidden, values),
        "linear_attn.conv1d": (channels, 1, config["linear_conv_kernel_dim"]),
    }
    vectors: Sizes = {"linear_attn.dt_bias": heads, "linear_attn.A_log": heads, "linear_attn.norm.weight": value_dim}
    return shapes, vectors
