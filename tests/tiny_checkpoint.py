"""Checkpoints of a few hundred kilobytes with random weights, written without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = dict[str, NDArray[np.float32]]


def tiny_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json with sizes that are no whole blocks, and two layers; `changes` replace or add keys."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 300,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }
    return config | changes


def random_tensors(config: dict[str, Any], seed: int = 0, scale: float = 0.15) -> Tensors:
    """Weights of a decoder under their Hugging Face names: matrices N(0, scale^2), norms around 1, biases around 0."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.normal(0, scale, (rows, columns)).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return random.normal(1, 0.2, size).astype(np.float32)

    hidden, mlp, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    qkv_bias = config.get("attention_bias", False) or config["model_type"] == "qwen2"
    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": norm(hidden)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = norm(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = norm(hidden)
        for name, size in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = matrix(size, hidden)
            if qkv_bias:
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = random.normal(0, 0.3, size).astype(np.float32)
        tensors[prefix + "self_attn.o_proj.weight"] = matrix(hidden, heads)
        if config.get("attention_bias", False):
            tensors[prefix + "self_attn.o_proj.bias"] = random.normal(0, 0.3, hidden).astype(np.float32)
        if config["model_type"] == "qwen3":
            tensors[prefix + "self_attn.q_norm.weight"] = norm(head_dim)
            tensors[prefix + "self_attn.k_norm.weight"] = norm(head_dim)
        for name, shape in (("gate", (mlp, hidden)), ("up", (mlp, hidden)), ("down", (hidden, mlp))):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = matrix(*shape)
    return tensors


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: Tensors | None = None) -> Path:
    """A folder of config.json and model.safetensors; random weights unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder
