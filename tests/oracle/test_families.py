"""Families with layers of several kinds on the simulated device, against transformers' own classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.isa.machine import BOARD
from npuserve.sim.native import available
from oracle.family_models import FAMILY_MODELS
from simulated_device import Logits, Simulated, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
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


def test_logits_are_those_of_transformers(pair: Pair) -> None:
    norms = np.linalg.norm(pair.logits, axis=1) * np.linalg.norm(pair.expected, axis=1)
    cosines = (pair.logits * pair.expected).sum(axis=1) / norms
    assert cosines.min() > 0.998


def test_greedy_tokens_are_those_of_transformers_wherever_the_margin_is_clear(pair: Pair) -> None:
    error = float(np.std(pair.logits - pair.expected))
    num_clear = 0
    for start in range(0, 100, 20):
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


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_in_chunks_gives_the_same_bits(pair: Pair, chunk: int) -> None:
    count = LENGTH if chunk > 1 else 300
    assert same_bits(pair.simulated.feed(pair.tokens[:count], slot=2, chunk=chunk), pair.logits[:count])


def test_the_board_gives_the_same_bits(pair: Pair) -> None:
    board = simulate(pair.folder, machine=BOARD, capacity=600, num_slots=1)
    assert same_bits(board.feed(pair.tokens[:270]), pair.logits[:270])


def test_the_reference_machine_gives_the_same_bits(pair: Pair) -> None:
    reference = simulate(pair.folder, kind="reference", capacity=600, num_slots=1)
    assert same_bits(reference.feed(pair.tokens[:24], chunk=9), pair.logits[:24])
