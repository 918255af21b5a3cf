"""The upper half of card memory, where addresses do not fit a signed word."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.isa.fields import Address, Value
from npuserve.isa.machine import WIDE
from npuserve.isa.spec import encode
from npuserve.sim.native import NativeMachine, available
from simulated_device import simulate
from tiny_checkpoint import tiny_config, write_checkpoint

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

BLOCKS, ROWS = 20, 1500
WEIGHT_BYTES = ROWS * BLOCKS * 128
SIZE = 4 << 20
RESULT = 1 << 16
TOP = (1 << 32) - SIZE
STRADDLING = (1 << 31) - WEIGHT_BYTES // 2 // 128 * 128


@pytest.mark.parametrize("base", [STRADDLING, TOP], ids=["across 2 GiB", "to the end of memory"])
def test_a_matrix_is_the_same_wherever_it_stands(base: int) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(-127, 128, WEIGHT_BYTES, np.int8).view(np.uint8)
    scales = rng.random(ROWS * BLOCKS, np.float32)
    activations = rng.standard_normal(BLOCKS * 128, np.float32)
    expected = product(0, codes, scales, activations)
    assert expected.any()
    np.testing.assert_array_equal(product(base, codes, scales, activations), expected)


def product(
    base: int, codes: NDArray[np.uint8], scales: NDArray[np.float32], activations: NDArray[np.float32]
) -> NDArray[np.uint32]:
    """By its first use, by the packed copy, and through LD of what ST has written beside the matrix."""
    machine = NativeMachine(WIDE, 1 << 32)
    machine.write_dram(base, codes)
    machine.write_dram(base + WEIGHT_BYTES, scales.view(np.uint8))
    machine.write_tmem(0, activations.view(np.uint32))
    stored = Address(1, SIZE - 4 * ROWS)
    operands: dict[str, Value] = {"sa": Address(1, 0), "ssa": Address(1, WEIGHT_BYTES), "n": ROWS, "kb": BLOCKS, "m": 1}
    operands |= {"rs": 128 * BLOCKS, "srs": 4 * BLOCKS, "ors": ROWS}
    program = [
        encode("LI", rd=1, value=base),
        encode("QACT", src=0, rows=1, kb=BLOCKS, srs=BLOCKS * 128),
        *(encode("MM", **operands, out=RESULT + place * ROWS) for place in range(3)),
        encode("ST", dst=stored, src=RESULT, count=ROWS),
        encode("LD", src=stored, dst=RESULT + 3 * ROWS, count=ROWS),
        encode("HALT"),
    ]
    machine.load(np.array(program, np.uint32))
    for _ in range(3):
        machine.run()
    return machine.read_tmem(RESULT, 4 * ROWS)


def test_the_last_slot_of_a_full_card_serves_as_the_first(tmp_path: Path) -> None:
    context = 1 << 17
    path = write_checkpoint(tmp_path, tiny_config(max_position_embeddings=context))
    one = simulate(path, capacity=context, num_slots=1)
    num_slots = ((1 << 32) - one.dram.programs) // one.dram.slot_stride
    full = simulate(path, capacity=context, num_slots=num_slots)
    last = full.dram.slots + (num_slots - 1) * full.dram.slot_stride
    assert last > 0xC000_0000
    tokens = np.arange(300) % full.facts.vocab_size
    expected = full.feed(tokens, slot=0)
    np.testing.assert_array_equal(full.feed(tokens, slot=num_slots - 1), expected)
    np.testing.assert_array_equal(full.device.save(num_slots - 1, 3), full.device.save(0, 3))
    full.device.restore(num_slots - 2, 0, [full.device.save(num_slots - 1, page) for page in range(4)])
    step = full.device.step([Row(num_slots - 2, 256, int(tokens[256]), True)])
    np.testing.assert_array_equal(step.logits[0], expected[256])
