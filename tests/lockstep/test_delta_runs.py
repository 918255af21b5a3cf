"""Many DSTEPs in a row: states of their own or shared, results apart or over each other, edge values."""

import numpy as np
import pytest

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words
from npuserve.isa.fields import Address
from npuserve.isa.machine import BOARD
from npuserve.isa.spec import encode
from npuserve.sim.native import available

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

DRAM_BYTES = 1 << 20
RESULTS = 40_000


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return native_fleet(BOARD, DRAM_BYTES, threads=(1, 2, 3))


def random_run(rng: np.random.Generator, number: int, *, alike: bool) -> list[list[int]]:
    """Steps of one size on a few states, or of any sizes on states that may overlap; few results meet anything."""
    steps = []
    for index in range(number):
        rows, cols = (128, 128) if alike else (int(rng.integers(1, 257)), int(rng.choice([64, 128, 192, 256])))
        state = int(rng.integers(0, 6)) * (1 << 16) if alike else int(rng.integers(0, 3000)) * 128
        out = RESULTS + 256 * index if rng.random() < 0.98 else int(rng.integers(0, 60_000))
        words = encode(
            "DSTEP",
            state=Address(8, state),
            qk=Address(9, 512 * int(rng.integers(0, 20))),
            v=20_000 + 256 * int(rng.integers(0, 20)),
            rows=rows,
            cols=cols,
            g=int(rng.integers(30_000, 30_100)),
            gs=int(rng.integers(0, 100)),
            o=out,
            zero=int(rng.random() < 0.05),
        )
        steps.append(words)
    return steps


@pytest.mark.parametrize("seed", range(16))
def test_runs_of_steps_in_lockstep(fleet: Fleet, seed: int) -> None:
    rng = np.random.default_rng(seed)
    wildness = float(rng.choice([0.0, 0.01, 0.3]))
    dram = random_words(rng, DRAM_BYTES // 4, wildness).view(np.uint8)
    memory = Memory({0: dram}, random_words(rng, BOARD.tmem_words, wildness), None)
    program = random_run(rng, int(rng.choice([3, 20, 40])), alike=bool(seed % 2))
    outcome = assert_lockstep(fleet, np.array([*program, encode("HALT")], np.uint32), (4096, 64), memory)
    assert outcome.retired == len(program) + 1
