"""A token's logits depend on its conversation alone, to the bit: not on how, where and beside whom it was fed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.isa.machine import BOARD
from npuserve.sim.native import available
from simulated_device import Logits, Simulated, simulate

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

LENGTH = 520
NUM_SLOTS = 3
CAPACITY = 600
Tokens = NDArray[np.int64]


def conversation(number: int, length: int = LENGTH) -> Tokens:
    return np.random.default_rng(number).integers(0, 300, length)


class Expected:
    """One device, and the logits of three conversations that were fed to it token by token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.simulated = simulate(folder, capacity=CAPACITY, num_slots=NUM_SLOTS)
        self.tokens = [conversation(number) for number in range(NUM_SLOTS)]
        self.logits = [self.simulated.feed(tokens, chunk=1) for tokens in self.tokens]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def expected(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Expected:
    return Expected(tiny_folder(request.param))


def assert_same_bits(got: Logits, expected: Logits) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("chunk", [2, 3, 7, 16, 64])
def test_chunks_of_a_prompt_change_nothing(expected: Expected, chunk: int) -> None:
    assert_same_bits(expected.simulated.feed(expected.tokens[0], chunk=chunk), expected.logits[0])


@pytest.mark.parametrize("slot", range(NUM_SLOTS))
def test_the_slot_changes_nothing(expected: Expected, slot: int) -> None:
    assert_same_bits(expected.simulated.feed(expected.tokens[0], slot=slot), expected.logits[0])


def test_what_the_slot_held_before_changes_nothing(expected: Expected) -> None:
    """A longer conversation with keys and values of every size first, then a short one over it."""
    simulated = expected.simulated
    simulated.feed(conversation(9, CAPACITY), slot=1)
    assert_same_bits(simulated.feed(expected.tokens[0][:300], slot=1, chunk=50), expected.logits[0][:300])
    assert_same_bits(simulated.feed(expected.tokens[2][:40], slot=1), expected.logits[2][:40])


def test_a_conversation_goes_on_where_another_left_the_same_prefix(expected: Expected) -> None:
    """As the engine reuses a warm slot: the tail is fed again over whatever stood there."""
    simulated, tokens = expected.simulated, expected.tokens[1]
    simulated.feed(np.concatenate([tokens[:200], conversation(7, 330)]), slot=0)
    assert_same_bits(simulated.feed(tokens[200:], slot=0, start=200), expected.logits[1][200:])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("start", [0, 250, 500])
def test_the_rows_beside_it_and_their_order_change_nothing(
    expected: Expected, start: int, order: tuple[int, ...]
) -> None:
    """Slot 0 prefills in chunks while the other two decode."""
    simulated = expected.simulated
    if start:
        for slot in range(NUM_SLOTS):
            simulated.feed(expected.tokens[slot][:start], slot=slot)
    places = [start] * NUM_SLOTS
    for count in (2, 5, 9):
        counts = {0: count, 1: 1, 2: 1}
        assert_step(expected, simulated, [(slot, slot, places[slot], counts[slot]) for slot in order])
        places = [place + counts[slot] for slot, place in enumerate(places)]


def assert_step(expected: Expected, simulated: Simulated, parts: list[tuple[int, int, int, int]]) -> None:
    """One step of (slot, conversation, position, rows) parts gives each one's own logits."""
    rows, wanted = [], []
    for slot, number, position, count in parts:
        tokens = expected.tokens[number][position : position + count]
        rows += [Row(slot, position + index, int(token), True) for index, token in enumerate(tokens)]
        wanted.append(expected.logits[number][position : position + count])
    assert_same_bits(simulated.device.step(rows).logits, np.concatenate(wanted))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_steps_give_the_logits_of_feeding_one_by_one(expected: Expected, data: st.DataObject) -> None:
    """Each slot holds some conversation up to near a border; random mixed steps carry them over it."""
    simulated = expected.simulated
    numbers = [data.draw(st.integers(0, NUM_SLOTS - 1)) for _ in range(NUM_SLOTS)]
    places = [data.draw(st.sampled_from([0, 0, 100, 248, 255, 256, 505, 511])) for _ in range(NUM_SLOTS)]
    for slot, (number, place) in enumerate(zip(numbers, places, strict=True)):
        if place:
            simulated.feed(expected.tokens[number][:place], slot=slot)
    for _ in range(data.draw(st.integers(1, 6))):
        slots = data.draw(st.permutations(range(NUM_SLOTS)))[: data.draw(st.integers(1, NUM_SLOTS))]
        long = data.draw(st.sampled_from(slots))
        parts = []
        for slot in slots:
            count = min(data.draw(st.integers(1, 12)) if slot == long else 1, LENGTH - places[slot])
            if count:
                parts.append((slot, numbers[slot], places[slot], count))
                places[slot] += count
        if parts:
            assert_step(expected, simulated, parts)


def test_rows_that_want_no_logits_change_nothing(expected: Expected) -> None:
    simulated, tokens = expected.simulated, expected.tokens[0]
    for start in range(0, 300, 60):
        rows = [Row(2, start + index, int(tokens[start + index]), index == 59) for index in range(60)]
        assert_same_bits(simulated.device.step(rows).logits, expected.logits[0][start + 59 : start + 60])


def test_the_board_with_its_four_rows_gives_the_same_bits(expected: Expected) -> None:
    board = simulate(expected.folder, machine=BOARD, capacity=CAPACITY, num_slots=2)
    assert board.device.capabilities.max_rows == 4
    assert_same_bits(board.feed(expected.tokens[0][:270], slot=1), expected.logits[0][:270])
    rows = [Row(0, 0, int(expected.tokens[1][0]), True)]
    rows += [Row(1, 270 + index, int(expected.tokens[0][270 + index]), True) for index in range(3)]
    wanted = np.concatenate([expected.logits[1][:1], expected.logits[0][270:273]])
    assert_same_bits(board.device.step(rows).logits, wanted)
