"""Programs compute the transformer: tiny models without torch, against the float64 emulation of the rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.models.registry import model_facts
from oracle.emulation import Emulation
from simulated_device import simulate
from tiny_checkpoint import tiny_config, write_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama with a head in several chunks": ("llama", {"vocab_size": 17_000}),
    "qwen2, heads of 192": ("qwen2", {"head_dim": 192, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen3, whole blocks": ("qwen3", {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}),
}


def distances(folder: Path, config: dict[str, Any], length: int, prompt: int) -> NDArray[np.float64]:
    """1 - cosine of each position's logits: a prompt in chunks, then decode steps."""
    simulated = simulate(write_checkpoint(folder, config))
    tokens = np.random.default_rng(1).integers(0, config["vocab_size"], length)
    parts = [simulated.feed(tokens[:prompt]), simulated.feed(tokens[prompt:], start=prompt, chunk=1)]
    logits = np.concatenate(parts).astype(np.float64)
    emulated = Emulation(simulated.checkpoint, model_facts(config)).logits(tokens)
    cosines: NDArray[np.float64] = (logits * emulated).sum(axis=1)
    cosines /= np.linalg.norm(logits, axis=1) * np.linalg.norm(emulated, axis=1)
    return 1 - cosines


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_emulation(name: str, tmp_path: Path) -> None:
    """The bound leaves room for a few int8 codes that fp32 tips over."""
    family, changes = MODELS[name]
    found = distances(tmp_path, tiny_config(family, **changes), length=12, prompt=9)
    assert found.max() < 1e-3
    assert np.median(found) < 1e-4


def test_a_context_goes_on_into_a_second_attention_block(tmp_path: Path) -> None:
    found = distances(tmp_path, tiny_config(num_hidden_layers=1), length=270, prompt=262)
    assert found.max() < 1e-3
    assert np.median(found) < 1e-4
