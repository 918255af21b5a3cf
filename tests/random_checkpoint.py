"""Full-size checkpoints of random weights, for what depends on shapes alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

QWEN3_06B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
SPREAD = 0.02


def write_random_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """config.json and float16 safetensors of a Llama, Qwen2 or Qwen3 shape, one file per layer; no tokenizer."""
    rng = np.random.default_rng(seed)
    hidden, mlp, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float16]]:
        return (SPREAD * rng.standard_normal((rows, columns), np.float32)).astype(np.float16)

    shapes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config["model_type"] == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    files: dict[str, str] = {}

    def save(tensors: dict[str, np.ndarray[Any, np.dtype[np.float16]]], file: str) -> None:
        save_file(tensors, folder / file)
        files.update(dict.fromkeys(tensors, file))

    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors = {f"{prefix}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}.{name}.weight": np.ones(size, np.float16) for name, size in norms.items()}
        save(tensors, f"layer-{layer:03}.safetensors")
    rest = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    rest["model.norm.weight"] = np.ones(hidden, np.float16)
    if not config["tie_word_embeddings"]:
        rest["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    save(rest, "rest.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder
