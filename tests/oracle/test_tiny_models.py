"""Random tiny models of every family on the simulated device, against transformers and the float64 emulation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.models.registry import model_facts
from oracle.emulation import Emulation, Rounding
from simulated_device import simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import logits_of, save_tiny_model

pytestmark = pytest.mark.oracle

FAMILIES = ("llama", "qwen2", "qwen3")
HEADS: dict[str, dict[str, Any]] = {
    "6 on 2 heads of 64": {"head_dim": 64},
    "4 on 1 heads of 32, three layers": {"num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 3},
    "3 on 3 heads of 128, tied": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "2 on 1 heads of 192": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 192},
    "whole blocks": {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "head_dim": 64},
}
EXTRAS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", {"attention_bias": True}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "llama with a head in several chunks": ("llama", {"vocab_size": 17_000}),
    "llama with llama3 scaling": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2 with linear scaling": (
        "qwen2",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}},
    ),
}
MODELS = {f"{family}, {name}": (family, heads) for family in FAMILIES for name, heads in HEADS.items()} | EXTRAS


def cosines(one: NDArray[np.floating], other: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of each position's logits."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    cosine: NDArray[np.float64] = (one * other).sum(axis=1)
    cosine /= np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return cosine


def distance(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Median over the positions of 1 - cosine: a code that fp32 tips over is in the positions behind it only."""
    return float(np.median(1 - cosines(one, other)))


def tokens(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 300, count)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    model = save_tiny_model(tmp_path, family, **changes)
    ids = tokens(40)
    logits = simulate(tmp_path).feed(ids)
    assert cosines(logits, logits_of(model, ids)).min() > 0.998


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_emulation(name: str, tmp_path: Path) -> None:
    """Closer than to transformers by far: what remains is fp32 rounding that tips a few int8 codes over."""
    family, changes = MODELS[name]
    model = save_tiny_model(tmp_path, family, initializer_range=0.04, **changes)
    ids = tokens(40)
    simulated = simulate(tmp_path)
    logits = simulated.feed(ids)
    emulated = Emulation(simulated.checkpoint, model_facts(simulated.checkpoint.config)).logits(ids)
    assert cosines(logits, emulated).min() > 0.9995
    assert distance(logits, emulated) < distance(logits, logits_of(model, ids)) / 2
    best, second = np.sort(emulated, axis=1)[:, [-1, -2]].T
    clear = best - second > 0.05 * emulated.std(axis=1)
    assert clear.sum() >= 20
    np.testing.assert_array_equal(logits.argmax(axis=1)[clear], emulated.argmax(axis=1)[clear])


@pytest.mark.parametrize("place", Rounding.places())
def test_the_device_rounds_at_every_place_of_the_emulation(place: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", initializer_range=0.08, head_dim=64)
    ids = tokens(40)
    simulated = simulate(tmp_path)
    logits, facts = simulated.feed(ids), model_facts(simulated.checkpoint.config)
    with_place = distance(logits, Emulation(simulated.checkpoint, facts).logits(ids))
    without = distance(logits, Emulation(simulated.checkpoint, facts, Rounding().without(place)).logits(ids))
    assert with_place < without / 3


@pytest.mark.parametrize("name", MODELS)
def test_the_emulation_without_rounding_is_transformers(name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    model = save_tiny_model(tmp_path, family, initializer_range=0.15, **changes)
    ids = tokens(40)
    checkpoint = simulate(tmp_path, kind="reference").checkpoint
    exact = Emulation(checkpoint, model_facts(checkpoint.config), Rounding.none()).logits(ids)
    assert cosines(exact, logits_of(model, ids)).min() > 1 - 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_contexts_cross_the_attention_blocks(family: str, tmp_path: Path) -> None:
    """300 positions of prompt, the 256th inside a chunk, then decode steps up to a third block's start."""
    model = save_tiny_model(tmp_path, family, initializer_range=0.04, head_dim=64)
    ids = tokens(516)
    simulated = simulate(tmp_path, capacity=600)
    chunks = [simulated.feed(ids[:300], chunk=60), simulated.feed(ids[300:505], start=300)]
    logits = np.concatenate([*chunks, simulated.feed(ids[505:], start=505, chunk=1)])
    emulated = Emulation(simulated.checkpoint, model_facts(simulated.checkpoint.config)).logits(ids)
    assert cosines(logits, emulated).min() > 0.9995
    assert cosines(logits, logits_of(model, ids)).min() > 0.998
