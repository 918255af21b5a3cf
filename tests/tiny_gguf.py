"""Small GGUF files, written with the gguf package."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32, 4, 2, 8, 64
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def tiny_vocabulary(num_tokens: int = 300) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE trained on a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=num_tokens, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 3, "hello hello world"], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in state["merges"]]


def tiny_tensors(num_tokens: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """One Llama layer, with tied embeddings, in GGUF's names and Hugging Face's row order."""
    random = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (num_tokens, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    vocabulary: tuple[Sequence[str], Sequence[str]] | None = None,
    control: Iterable[str] = ("<|im_start|>", "<|im_end|>"),
    user_defined: Iterable[str] = (),
    unused: Iterable[str] = (),
    tensors: Mapping[str, NDArray[Any]] | None = None,
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """A whole model; `extra` adds or replaces metadata, a value of None leaves the key out."""
    words, merges = vocabulary or tiny_vocabulary()
    groups = ((words, NORMAL), (control, CONTROL), (user_defined, USER_DEFINED), (unused, UNUSED))
    tokens = [token for group, _ in groups for token in group]
    kinds = [kind for group, kind in groups for _ in group]
    metadata: dict[str, Any] = {
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INTERMEDIATE,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.chat_template": "{{ messages }}",
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata | dict(extra or {})).items():
        _add(writer, key, value)
    for name, values in (tiny_tensors(len(tokens)) if tensors is None else tensors).items():
        writer.add_tensor(name, values, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
