"""SmolLM2 on the simulated device: a real model's outliers and depth, on English text.

The whole of bench/accuracy.py is this at 2,000 tokens; here are as many as take seconds.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.checkpoints.locate import find_checkpoint
from npuserve.errors import CheckpointError
from npuserve.models.registry import model_facts
from npuserve.sim.native import available
from oracle.accuracy import Tokens, agreement, english_tokens, rows_of
from oracle.emulation import Emulation
from simulated_device import Logits, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import load_checkpoint, logits_of

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not available(), reason="the native core is not built")]

NUM_TOKENS = 600
NUM_EMULATED = 120


@pytest.fixture(scope="module")
def path() -> Path:
    """The checkpoint as the catalog finds it; nothing is fetched here."""
    try:
        found = find_checkpoint("smollm2")
    except CheckpointError as error:
        pytest.skip(str(error))
    if not isinstance(found, Path):
        pytest.skip("SmolLM2 is not on this machine; `otpu-pull smollm2` fetches it")
    return found


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> Iterator[Checkpoint]:
    opened = open_checkpoint(path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tokens(checkpoint: Checkpoint) -> Tokens:
    return english_tokens(checkpoint, NUM_TOKENS)


@pytest.fixture(scope="module")
def device_logits(path: Path, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Logits:
    image = tmp_path_factory.mktemp("smollm2") / "device.img"
    return simulate(path, capacity=1024, num_slots=1, image=image).feed(tokens)


def test_next_tokens_are_those_of_transformers(checkpoint: Checkpoint, tokens: Tokens, device_logits: Logits) -> None:
    """Against float32 on the same dequantized weights; what int8 costs."""
    reference = logits_of(load_checkpoint(checkpoint), tokens)
    found = agreement(rows_of(device_logits), rows_of(reference), tokens)
    assert found.mean_kl < 0.01
    assert found.top1 > 0.94
    assert abs(found.perplexity_change) < 0.015


@pytest.mark.slow
def test_the_device_is_as_near_to_the_emulation_as_rounding_lets_it(
    checkpoint: Checkpoint, tokens: Tokens, device_logits: Logits
) -> None:
    few = tokens[:NUM_EMULATED]
    facts = model_facts(checkpoint.config)
    emulation = Emulation(checkpoint, facts)
    emulated = emulation.logits(few)
    emulation.noise = 1e-7
    expected = agreement(rows_of(emulation.logits(few)), rows_of(emulated), few)
    found = agreement(rows_of(device_logits[:NUM_EMULATED]), rows_of(emulated), few)
    assert found.mean_kl < 1.5 * expected.mean_kl
    assert found.top1 > expected.top1 - 0.05


@pytest.mark.parametrize("layer", [0, 14, 29])
def test_a_single_layer_is_the_emulation_to_fp32(
    layer: int, path: Path, checkpoint: Checkpoint, tokens: Tokens, tmp_path: Path
) -> None:
    """Conversations of three tokens through one layer: in most of them not one int8 code is tipped over."""
    facts = replace(
        model_facts(checkpoint.config),
        num_layers=1,
        layer_prefix=f"model.layers.{layer}.",
        skipped=rf"model\.layers\.(?!{layer}\.)",
    )
    simulated = simulate(path, capacity=256, num_slots=1, image=tmp_path / "layer.img", facts=facts)
    emulation = Emulation(checkpoint, facts)
    conversations = tokens[:96].reshape(-1, 3)
    logits = np.concatenate([simulated.feed(ids) for ids in conversations]).astype(np.float64)
    emulated = np.concatenate([emulation.logits(ids) for ids in conversations])
    norms = np.linalg.norm(logits, axis=1) * np.linalg.norm(emulated, axis=1)
    distances = 1 - (logits * emulated).sum(axis=1) / norms
    assert np.mean(distances < 1e-10) > 0.5
    assert distances.max() < 5e-3
