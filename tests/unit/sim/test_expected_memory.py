"""Memory that is prepared ahead of its use holds what it held."""

import numpy as np
import pytest

from npuserve.errors import ProgramError
from npuserve.isa.machine import WIDE
from npuserve.sim.native import NativeMachine, available, native_link

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")
SIZE = 1 << 24


def test_what_was_written_stays_and_the_rest_is_zero() -> None:
    machine = NativeMachine(WIDE, SIZE, threads=1)
    data = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
    machine.write_dram(5_000_000, data)
    machine.expect(4_999_999, 3_000_000)
    np.testing.assert_array_equal(machine.read_dram(5_000_000, len(data)), data)
    assert not machine.read_dram(5_010_000, 1_000_000).any()


def test_memory_outside_is_refused() -> None:
    with pytest.raises(ProgramError, match="outside"):
        NativeMachine(WIDE, SIZE, threads=1).expect(SIZE - 10, 20)


def test_a_link_hands_it_on() -> None:
    link = native_link(WIDE, SIZE, threads=1)
    link.write_dram(4096, np.full(64, 7, np.uint8))
    link.expect(0, SIZE)
    assert link.read_dram(4096, 64).tolist() == [7] * 64
