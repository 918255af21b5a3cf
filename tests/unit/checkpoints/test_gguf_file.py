"""GGUF files as checkpoints: configuration, names, row order, dequantization."""

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.gguf_header import BLOCK_TYPES
from npuserve.errors import CheckpointError, UnsupportedModelError
from tiny_gguf import HEAD_DIM, HEADS, HIDDEN, tiny_tensors, tiny_vocabulary, write_gguf

NUM_TOKENS = len(tiny_vocabulary()[0]) + 2


def test_metadata_is_given_in_hugging_face_terms(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", extra={"general.sampling.temp": 0.6}))
    assert checkpoint.config == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": NUM_TOKENS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_scaling": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    assert checkpoint.generation_config == {"temperature": 0.6}
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.name == "tiny"
    checkpoint.close()


def test_a_folder_with_one_gguf_file_is_that_file_under_the_folders_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.Q4_1.gguf")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.name == tmp_path.name
    assert checkpoint.config["model_type"] == "llama"
    checkpoint.close()


def test_a_folder_with_two_gguf_files_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(CheckpointError, match="2 GGUF files; give the path of one"):
        open_checkpoint(tmp_path)


def test_a_single_safetensors_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(16))
    with pytest.raises(CheckpointError, match="give the folder"):
        open_checkpoint(path)


def to_gguf_rows(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The converter's permutation, pair by pair: row h*D + a*D/2 + i goes to h*D + 2*i + a."""
    stored = np.empty_like(weight)
    for row in range(len(weight)):
        head, inside = divmod(row, HEAD_DIM)
        half, pair = divmod(inside, HEAD_DIM // 2)
        stored[head * HEAD_DIM + 2 * pair + half] = weight[row]
    return stored


def test_llama_q_and_k_rows_come_back_in_hugging_face_order(tmp_path: Path) -> None:
    tensors = tiny_tensors(NUM_TOKENS)
    stored = dict(tensors)
    for part in "qk":
        stored[f"blk.0.attn_{part}.weight"] = to_gguf_rows(tensors[f"blk.0.attn_{part}.weight"])
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tensors=stored))
    for theirs, ours in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj")):
        name = f"model.layers.0.self_attn.{ours}.weight"
        want = tensors[f"blk.0.attn_{theirs}.weight"]
        np.testing.assert_array_equal(checkpoint.tensor(name), want)
        np.testing.assert_array_equal(checkpoint.tensor_rows(name, 3, 13), want[3:13])
    checkpoint.close()


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_rows_are_stored_as_they_are(tmp_path: Path, architecture: str) -> None:
    tensors = tiny_tensors(NUM_TOKENS) | {"blk.0.attn_q.bias": np.arange(HIDDEN, dtype=np.float32)}
    path = write_gguf(tmp_path / "tiny.gguf", architecture=architecture, pre="qwen2", tensors=tensors)
    checkpoint = open_checkpoint(path)
    name = "model.layers.0.self_attn.q_proj"
    np.testing.assert_array_equal(checkpoint.tensor(f"{name}.weight"), tensors["blk.0.attn_q.weight"])
    np.testing.assert_array_equal(checkpoint.tensor(f"{name}.bias"), tensors["blk.0.attn_q.bias"])
    assert checkpoint.config["model_type"] == architecture
    assert checkpoint.config["attention_bias"]
    checkpoint.close()


def test_untied_head_is_lm_head(tmp_path: Path) -> None:
    tensors: dict[str, Any] = tiny_tensors(NUM_TOKENS) | {"output.weight": np.ones((NUM_TOKENS, HIDDEN), np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tensors=tensors))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.shape("lm_head.weight") == (NUM_TOKENS, HIDDEN)
    checkpoint.close()


def test_rope_factors_of_llama_3_become_longrope(tmp_path: Path) -> None:
    factors = np.array([1, 2, 8, 8], np.float32)
    checkpoint = open_checkpoint(
        write_gguf(tmp_path / "tiny.gguf", tensors=tiny_tensors(NUM_TOKENS) | {"rope_freqs.weight": factors})
    )
    assert checkpoint.config["rope_scaling"]["short_factor"] == [1.0, 2.0, 8.0, 8.0]
    assert "rope_freqs.weight" not in checkpoint.tensor_names()
    checkpoint.close()


def test_block_table_agrees_with_the_gguf_package() -> None:
    theirs = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    ours = {number: (block.name, block.block_size, block.block_bytes) for number, block in BLOCK_TYPES.items()}
    assert ours == {number: theirs[number] for number in ours}


def stored_as(kind: GGMLQuantizationType, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`values` quantized, or random blocks where the gguf package can only unpack."""
    try:
        return np.asarray(quants.quantize(values, kind))
    except NotImplementedError:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_bytes = values.shape[1] // block_size * block_bytes
        stored = np.random.default_rng(kind.value).integers(0, 256, (len(values), row_bytes), np.uint8)
        if kind.name == "NVFP4":
            stored.reshape(-1, block_bytes)[:, :4] %= 0x7F  # scales have no sign, and are numbers
        return stored


@pytest.mark.parametrize("number", [n for n, block in BLOCK_TYPES.items() if block.name not in ("F32", "F16")])
def test_every_block_type_is_unpacked_as_the_gguf_package_does_or_refused_by_name(tmp_path: Path, number: int) -> None:
    kind = GGMLQuantizationType(number)
    values = np.random.default_rng(7).standard_normal((6, 512), np.float32)
    if kind.name in ("I8", "I16", "I32", "I64", "F64"):
        stored, types = values.astype(kind.name.replace("I", "int").replace("F", "float").lower()), {}
    else:
        stored, types = stored_as(kind, values), {"x.weight": kind}
    path = write_gguf(tmp_path / "tiny.gguf", tensors={"x.weight": stored}, types=types)
    checkpoint = open_checkpoint(path)
    (theirs,) = gguf.GGUFReader(path).tensors
    assert checkpoint.shape("x.weight") == (6, 512)
    try:
        with np.errstate(all="ignore"):
            want = quants.dequantize(theirs.data, theirs.tensor_type)
    except NotImplementedError:
        with pytest.raises(UnsupportedModelError, match=f"'x.weight' is stored as {kind.name}"):
            checkpoint.tensor("x.weight")
    else:
        np.testing.assert_array_equal(checkpoint.tensor("x.weight"), want)
        np.testing.assert_array_equal(checkpoint.tensor_rows("x.weight", 2, 5), want[2:5])
    checkpoint.close()


def test_half_and_single_are_read(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [np.inf, 0.0]])
    tensors: dict[str, NDArray[Any]] = {"h.weight": values.astype(np.float16), "s.weight": values.astype(np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tensors=tensors))
    for name in tensors:
        np.testing.assert_array_equal(checkpoint.tensor(name), values)
        assert checkpoint.tensor(name).dtype == np.float32
    checkpoint.close()


def test_tensors_outlive_close(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf"))
    values = checkpoint.tensor("model.norm.weight")
    checkpoint.close()
    checkpoint.close()
    values += 1
    assert np.isfinite(values).all()


def test_rows_outside_the_tensor_are_a_bug_of_the_caller(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf"))
    with pytest.raises(ValueError, match=f"which has {NUM_TOKENS}"):
        checkpoint.tensor_rows("model.embed_tokens.weight", 0, NUM_TOKENS + 1)
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head\.weight'"):
        checkpoint.tensor("lm_head.weight")
    checkpoint.close()


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"llama.block_count": None}, CheckpointError, "llama.block_count is None"),
        ({"llama.block_count": 0}, CheckpointError, "llama.block_count is 0"),
        ({"llama.embedding_length": "big"}, CheckpointError, "embedding_length is 'big'"),
        ({"llama.embedding_length": 1}, CheckpointError, "key_length is None"),
        ({"llama.attention.head_count": [4]}, CheckpointError, "head_count is"),
        ({"llama.attention.head_count_kv": 3}, CheckpointError, "a divisor of the number of heads"),
        ({"llama.attention.key_length": 7, "llama.rope.dimension_count": 7}, CheckpointError, "an even"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, CheckpointError, "epsilon is nan"),
        ({"llama.rope.freq_base": -1.0}, CheckpointError, "freq_base is -1.0"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "mixture of experts"),
        ({"llama.rope.dimension_count": 4}, UnsupportedModelError, "RoPE on 4 of 8"),
        ({"general.architecture": "mamba"}, UnsupportedModelError, "'mamba' is not read; known are llama, qwen2"),
        ({"general.alignment": 3}, CheckpointError, "general.alignment is 3"),
    ],
)
def test_bad_metadata_is_named(
    tmp_path: Path, extra: dict[str, Any], error: type[CheckpointError], message: str
) -> None:
    architecture = extra.pop("general.architecture", None)
    tensors: dict[str, Any] | None = {} if "general.alignment" in extra else None
    if architecture is None:
        path = write_gguf(tmp_path / "tiny.gguf", extra=extra, tensors=tensors)
    else:
        path = write_gguf(tmp_path / "tiny.gguf", architecture=architecture)
    with pytest.raises(error, match=message) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_q_rows_that_are_not_whole_heads_are_refused(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.weight": np.ones((HEADS * HEAD_DIM + 1, HIDDEN), np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tensors=tensors))
    with pytest.raises(CheckpointError, match="not whole heads of 8"):
        checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")
    checkpoint.close()


def test_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    def fingerprint(seed: int) -> str:
        path = tmp_path / "tiny.gguf"
        write_gguf(path, tensors=tiny_tensors(NUM_TOKENS, seed))
        os.utime(path, ns=(0, 0))
        checkpoint = open_checkpoint(path)
        value = checkpoint.fingerprint
        checkpoint.close()
        return value

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)
