"""Rotary frequencies against transformers' own, from the same configuration."""

from typing import Any

import numpy as np
import pytest

from npuserve.models.registry import model_facts
from tiny_checkpoint import tiny_config

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

pytestmark = pytest.mark.oracle

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 10_000.0},
    "SmolLM2": {"rope_theta": 100_000.0},
    "newer form": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "linear": {"rope_theta": 10_000.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "Llama 3.1": {"rope_theta": 500_000.0, "rope_scaling": LLAMA3},
    "Llama 3.2": {"rope_theta": 500_000.0, "rope_scaling": LLAMA3 | {"factor": 32.0}},
    "Llama 3.2, newer form": {"rope_parameters": LLAMA3 | {"factor": 32.0, "rope_theta": 500_000.0}},
}


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_and_gain_are_those_of_transformers(name: str, head_dim: int) -> None:
    config = tiny_config(head_dim=head_dim, max_position_embeddings=131_072) | {"rope_theta": None} | CONFIGS[name]
    config = {key: value for key, value in config.items() if value is not None}
    facts = model_facts(config)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**config))
    np.testing.assert_allclose(facts.inverse_frequencies, theirs.inv_freq.numpy(), rtol=1e-6)
    assert facts.rope_gain == theirs.attention_scaling
