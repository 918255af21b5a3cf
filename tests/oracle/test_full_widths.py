"""A few layers of each catalogued model, one of each kind, in their full width, against transformers' own classes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from full_size_models import FULL_SIZE_MODELS
from npuserve.sim.native import available
from simulated_device import simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import logits_of, save_tiny_model

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="the native core is not built"),
]

VOCAB_SIZE = 500
SLIDING, FULL = "sliding_attention", "full_attention"
FEW_LAYERS: dict[str, dict[str, Any]] = {
    "smollm3": {"num_hidden_layers": 2, "no_rope_layers": [1, 0]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", FULL]},
    "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", FULL]},
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, FULL] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB_SIZE,
    },
}
"""By family; two layers where they are all alike."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "model"
    shutil.rmtree(tmp_path / "model", ignore_errors=True)  # gigabytes, which pytest would keep


@pytest.mark.parametrize("name", FULL_SIZE_MODELS)
def test_logits_are_those_of_transformers(name: str, folder: Path) -> None:
    config = FULL_SIZE_MODELS[name]
    changes = config | {"vocab_size": VOCAB_SIZE} | FEW_LAYERS.get(config["model_type"], {"num_hidden_layers": 2})
    changes.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    model = save_tiny_model(folder, changes.pop("model_type"), **changes)
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, 70)
    simulated = simulate(folder, capacity=256, num_slots=1)
    found, expected = simulated.feed(tokens).astype(np.float64), logits_of(model, tokens).astype(np.float64)
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert 1 - cosines.mean() < 0.002
