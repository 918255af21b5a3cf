"""SmolLM2 on the simulated device: a real model's outliers and depth, on English text.

bench/accuracy.py is this at 2,000 tokens; here are as many as take seconds.
"""

from collections.abc import Iterator
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
from oracle.layer_run import LayerRun
from oracle.teacher_forcing import teacher_forced
from simulated_device import Logits, Simulated, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import load_checkpoint, logits_of

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not available(), reason="the native core is not built")]

NUM_TOKENS = 600
NUM_EMULATED = 256


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
def simulated(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return simulate(path, capacity=1024, num_slots=1, image=tmp_path_factory.mktemp("smollm2") / "device.img")


@pytest.fixture(scope="module")
def device_logits(simulated: Simulated, tokens: Tokens) -> Logits:
    return simulated.feed(tokens)


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


def test_layers_are_those_of_the_emulation_but_for_tipped_codes(
    checkpoint: Checkpoint, tokens: Tokens, simulated: Simulated, device_logits: Logits
) -> None:
    """Every layer given the device's own hidden state, which is shown to be that of a usual run by its logits."""
    few = tokens[:NUM_EMULATED]
    run = LayerRun(simulated)
    found = teacher_forced(run, Emulation(checkpoint, simulated.facts), few)
    np.testing.assert_array_equal(found.logits.view(np.uint32), device_logits[:NUM_EMULATED].view(np.uint32))
    assert np.median([layer.median for layer in found.layers]) < 1e-6
    assert max(layer.largest for layer in found.layers) < 0.05
    assert found.top1 >= 0.999
    assert found.largest_logit_error < 0.02
