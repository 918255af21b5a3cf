"""Families with layers of several kinds on the simulated device, against transformers' own classes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.isa.machine import BOARD
from npuserve.models.registry import model_facts
from npuserve.sim.native import available
from oracle.family_models import FAMILY_MODELS
from simulated_device import Logits, Simulated, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.rounded_transformers import rounded_logits
from oracle.transformers_models import logits_of, save_tiny_model

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not available(), reason="the native core is not built")]

LENGTH = 540
NUM_GENERATED = 64
CLEAR_ERRORS = 5
"""A margin of that many standard errors of a logit on another text is not what quantization turns over."""


@dataclass(frozen=True)
class Pair:
    """A model as transformers has it and as the device has it, with logits of one long text from both."""

    folder: Path
    model: Any
    simulated: Simulated
    tokens: NDArray[np.int64]
    logits: Logits
    expected: Logits


@pytest.fixture(scope="module", params=FAMILY_MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, changes = FAMILY_MODELS[request.param]
    folder = tmp_path_factory.mktemp(family)
    model = save_tiny_model(folder, family, **changes)
    simulated = simulate(folder, capacity=600, num_slots=3)
    tokens = np.random.default_rng(1).integers(0, 300, LENGTH)
    return Pair(folder, model, simulated, tokens, simulated.feed(tokens), logits_of(model, tokens))


def same_bits(one: Logits, other: Logits) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def distances(one: NDArray[np.floating], other: NDArray[np.floating]) -> NDArray[np.float64]:
    """1 - cosine of each position's logits."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    distance: NDArray[np.float64] = 1 - (one * other).sum(axis=1) / norms
    return distance


def test_logits_are_those_of_transformers(pair: Pair) -> None:
    assert distances(pair.logits, pair.expected).mean() < 0.002


def test_logits_are_those_of_transformers_that_round_in_the_same_places(pair: Pair) -> None:
    """The first position is one of few in which no code is tipped over; what rounding costs is the same in both.

    The device has the hidden state in the checkpoint's own basis here, as transformers.
    """
    tokens = pair.tokens
    facts = replace(model_facts(pair.simulated.checkpoint.config), rotated=False)
    image = pair.folder / "plain.img"
    logits = simulate(pair.folder, capacity=600, num_slots=1, image=image, facts=facts).feed(tokens)
    rounded = rounded_logits(pair.model, tokens)
    found = distances(logits, rounded)
    assert found[0] < 1e-6
    assert found.mean() < 0.0005
    costs = distances(rounded, pair.expected)
    assert distances(logits, pair.expected).mean() < 1.2 * costs.mean()
    assert found.mean() < costs.mean()


def test_greedy_tokens_are_those_of_transformers_wherever_the_margin_is_clear(pair: Pair) -> None:
    error = float(np.std(pair.logits - pair.expected))
    num_clear = 0
    for start in range(0, 80, 20):
        prompt = pair.tokens[start : start + 20]
        tokens, logits = list(prompt), pair.simulated.feed(prompt, slot=1)
        for _ in range(NUM_GENERATED):
            tokens.append(int(logits[-1].argmax()))
            logits = pair.simulated.feed(tokens[-1:], slot=1, start=len(tokens) - 1)
        expected = logits_of(pair.model, np.array(tokens))[len(prompt) - 1 : -1]
        best, second = np.sort(expected, axis=1)[:, [-1, -2]].T
        clear = best - second > CLEAR_ERRORS * error
        np.testing.assert_array_equal(np.array(tokens[len(prompt) :])[clear], expected.argmax(axis=1)[clear])
        num_clear += int(clear.sum())
    assert num_clear > NUM_GENERATED


@pytest.mark.parametrize("chunk", [1, 50])
def test_a_prompt_in_chunks_gives_the_same_bits(pair: Pair, chunk: int) -> None:
    count = LENGTH if chunk > 1 else 300
    assert same_bits(pair.simulated.feed(pair.tokens[:count], slot=2, chunk=chunk), pair.logits[:count])


def test_the_board_gives_the_same_bits(pair: Pair) -> None:
    board = simulate(pair.folder, machine=BOARD, capacity=600, num_slots=1)
    assert same_bits(board.feed(pair.tokens[:270]), pair.logits[:270])


def test_the_reference_machine_gives_the_same_bits(pair: Pair) -> None:
    reference = simulate(pair.folder, kind="reference", capacity=600, num_slots=1)
    assert same_bits(reference.feed(pair.tokens[:24], chunk=9), pair.logits[:24])


def test_a_context_goes_on_from_saved_pages_as_if_it_had_not_been_interrupted(pair: Pair) -> None:
    """Saved at 100 tokens out of one slot and restored into another, where something else stood."""
    simulated = pair.simulated
    simulated.feed(pair.tokens[::-1].copy(), slot=2)
    simulated.feed(pair.tokens[:64], slot=1, chunk=50)
    pages = [simulated.device.save(1, 0)]
    simulated.feed(pair.tokens[64:100], slot=1, start=64)
    pages.append(simulated.device.save(1, 1))
    simulated.device.restore(2, 0, pages)
    assert same_bits(simulated.feed(pair.tokens[100:300], slot=2, start=100), pair.logits[100:300])


def test_another_conversation_in_the_slot_before_changes_nothing(pair: Pair) -> None:
    pair.simulated.feed(pair.tokens[::-1].copy(), slot=1)
    assert same_bits(pair.simulated.feed(pair.tokens[:90], slot=1), pair.logits[:90])


def test_rows_of_other_slots_change_nothing(pair: Pair) -> None:
    """Slot 0 is fed in chunks while two others decode."""
    device = pair.simulated.device
    for step in range(6):
        start = 5 * step
        rows = [Row(1, step, int(pair.tokens[step]), True)]
        rows += [Row(0, start + index, int(token), True) for index, token in enumerate(pair.tokens[start : start + 5])]
        rows += [Row(2, step, int(pair.tokens[step]), True)]
        logits = device.step(rows).logits
        expected = pair.logits[[step, *range(start, start + 5), step]]
        assert same_bits(logits, expected)


def test_a_state_cannot_go_back(pair: Pair) -> None:
    """Rows of attention alone can."""
    simulated = pair.simulated
    simulated.feed(pair.tokens[:70], slot=1)
    if not simulated.device.capabilities.recurrent:
        assert same_bits(simulated.feed(pair.tokens[40:70], slot=1, start=40), pair.logits[40:70])
        return
    with pytest.raises(ValueError, match="a recurrent state at 70 cannot go on at position 40"):
        simulated.feed(pair.tokens[40:41], slot=1, start=40)
    with pytest.raises(ValueError, match="a recurrent state at 70 cannot be saved with page 0"):
        simulated.device.save(1, 0)
