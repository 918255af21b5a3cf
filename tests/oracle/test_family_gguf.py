"""GGUF files of the families that have their own names there, against the folder that they were made from."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.models.registry import model_facts
from npuserve.sim.native import available
from oracle.family_models import FAMILY_MODELS
from simulated_device import simulate
from tiny_gguf import tiny_vocabulary, write_gguf

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import save_tiny_model

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not available(), reason="the native core is not built")]


def gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    """As llama.cpp's converter, whose table of names this is."""
    found: str | None = names.get_name(name, (".weight", ".bias"))
    assert found is not None, name
    return found


def write_lfm2(folder: Checkpoint, path: Path) -> Path:
    config = folder.config
    num_layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LFM2, num_layers)
    tensors = {}
    for name in folder.tensor_names():
        values = folder.tensor(name)
        tensors[gguf_name(names, name)] = values[:, 0] if name.endswith("conv.conv.weight") else values
    kv_heads = [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in config["layer_types"]]
    sizes = {
        "block_count": num_layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": kv_heads,
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "shortconv.l_cache": config["conv_L_cache"],
    }
    extra = {f"lfm2.{key}": value for key, value in sizes.items()}
    vocabulary = tiny_vocabulary(config["vocab_size"] - 2)
    return write_gguf(path, architecture="lfm2", pre="lfm2", vocabulary=vocabulary, tensors=tensors, extra=extra)


def write_gemma4(folder: Checkpoint, path: Path) -> Path:
    """As llama.cpp's converter does it, whose names have `.weight` behind the layers' scalars."""
    config = folder.config
    num_layers, size = config["num_hidden_layers"], config["intermediate_size"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, num_layers)
    tensors = {}
    for name in folder.tensor_names():
        known = f"{name}.weight" if name.endswith("layer_scalar") else name
        tensors[gguf_name(names, known)] = folder.tensor(name)
    head_dim = 64
    turning = int(head_dim * 0.25 / 2)
    tensors["rope_freqs.weight"] = np.array([1.0] * turning + [1e30] * (head_dim // 2 - turning), np.float32)
    shared = config["num_kv_shared_layers"]
    sizes = {
        "block_count": num_layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": [size] * (num_layers - shared) + [2 * size] * shared,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.key_length_swa": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10_000.0,
    }
    extra: dict[str, Any] = {f"gemma4.{key}": value for key, value in sizes.items()}
    extra |= {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.pre": None}
    return write_gguf(path, architecture="gemma4", vocabulary=spaced_vocabulary(), tensors=tensors, extra=extra)


def spaced_vocabulary() -> tuple[list[str], list[str]]:
    """298 tokens: <unk>, every byte, a few letters and what they merge to."""
    letters = list("\u2581abcdefghijklmnopqrstuv")
    merged = [f"{letters[0]}{letter}" for letter in "ab"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *merged]
    tokens += [f"<unused{number}>" for number in range(298 - len(tokens))]
    return tokens, [f"{token[0]} {token[1]}" for token in merged]


def test_gemma4_gives_the_same_bits_from_both(tmp_path: Path) -> None:
    family, changes = FAMILY_MODELS["gemma4, windows of 100, own and shared keys, two sizes of heads"]
    save_tiny_model(tmp_path / "folder", family, **changes)
    folder = simulate(tmp_path / "folder", capacity=256, num_slots=1)
    path = write_gemma4(folder.checkpoint, tmp_path / "gemma4.gguf")
    opened = open_checkpoint(path)
    facts, expected = model_facts(opened.config), model_facts(folder.checkpoint.config)
    assert (facts.layer_kinds, facts.cache_layers) == (expected.layer_kinds, expected.cache_layers)
    assert sorted(opened.tensor_names()) == sorted(folder.checkpoint.tensor_names())
    tokens = np.arange(200)
    device = simulate(path, capacity=256, num_slots=1, image=tmp_path / "gguf.img")
    np.testing.assert_array_equal(device.feed(tokens), folder.feed(tokens))


def test_text_of_gemma4_goes_through_marked_spaces_and_bytes(tmp_path: Path) -> None:
    _, changes = FAMILY_MODELS["gemma4, windows of 100, own and shared keys, two sizes of heads"]
    save_tiny_model(tmp_path / "folder", "gemma4_text", **changes)
    path = write_gemma4(open_checkpoint(tmp_path / "folder"), tmp_path / "gemma4.gguf")
    tokenizer = open_checkpoint(path).tokenizer()
    encoded = tokenizer.encode("b a\u00e4 ", add_special_tokens=False)
    assert encoded.tokens == ["b", "\u2581a", "<0xC3>", "<0xA4>", "\u2581"]
    assert tokenizer.decode(encoded.ids) == "b a\u00e4 "


def test_lfm2_gives_the_same_bits_from_both(tmp_path: Path) -> None:
    _, changes = FAMILY_MODELS["lfm2, seven layers"]
    save_tiny_model(tmp_path / "folder", "lfm2", **changes)
    folder = simulate(tmp_path / "folder", capacity=256, num_slots=1)
    path = write_lfm2(folder.checkpoint, tmp_path / "lfm2.gguf")
    opened = open_checkpoint(path)
    facts, expected = model_facts(opened.config), model_facts(folder.checkpoint.config)
    assert (facts.layer_kinds, facts.conv_taps, facts.head_dim) == (expected.layer_kinds, 0, expected.head_dim)
    assert sorted(opened.tensor_names()) == sorted(folder.checkpoint.tensor_names())
    tokens = np.arange(30)
    device = simulate(path, capacity=256, num_slots=1, image=tmp_path / "gguf.img")
    np.testing.assert_array_equal(device.feed(tokens), folder.feed(tokens))
    assert len(opened.tokenizer().encode("the quick brown fox").ids) > 1
