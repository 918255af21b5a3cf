"""GGUF files of the families that have their own names there, against the folder that they were made from."""

from pathlib import Path

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
