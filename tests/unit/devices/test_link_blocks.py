"""Strided parts of card memory: the same bytes whichever way the link moves them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.drivers.blocks import read_block, write_block
from npuserve.isa.machine import WIDE
from npuserve.sim.native import NativeLink, NativeMachine, available

MEMORY_BYTES = 1 << 20
BEAT = 64


class ArrayLink:
    """A card of memory only, strict about beats, that counts transfers."""

    def __init__(self) -> None:
        self.memory = np.zeros(MEMORY_BYTES, np.uint8)
        self.num_transfers = 0

    def read_register(self, offset: int) -> int:
        raise AssertionError

    def write_register(self, offset: int, value: int) -> None:
        raise AssertionError

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        self.num_transfers += 1
        view = self.memory[address : address + size]
        view.flags.writeable = False
        return view

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        assert address % BEAT == data.size % BEAT == 0
        self.num_transfers += 1
        self.memory[address : address + data.size] = data

    def load_file(self, path: Path, offset: int, size: int, address: int) -> None:
        raise AssertionError

    def close(self) -> None: ...


# Few long rows far apart; many beats close together.
SHAPES = [((2, 3, 8192), (400_000, 99_968)), ((2, 192, 64), (499_968, 640)), ((1, 1, 64), (64, 64))]


@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_a_block_is_written_where_it_is_read_and_nowhere_else(
    shape: tuple[int, int, int], strides: tuple[int, int]
) -> None:
    link = ArrayLink()
    before = np.random.default_rng(0).integers(0, 256, MEMORY_BYTES, np.uint8)
    link.memory[:] = before
    data = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    write_block(link, 4096, strides, data)
    np.testing.assert_array_equal(read_block(link, 4096, shape, strides), data)
    places = [4096 + group * strides[0] + row * strides[1] for group in range(shape[0]) for row in range(shape[1])]
    for place in places:
        before[place : place + shape[2]] = link.memory[place : place + shape[2]]
    np.testing.assert_array_equal(link.memory, before)


def test_beats_close_together_take_few_transfers() -> None:
    link = ArrayLink()
    write_block(link, 0, (499_968, 640), np.ones((2, 192, 64), np.uint8))
    read_block(link, 0, (2, 192, 64), (499_968, 640))
    assert link.num_transfers == 2 * 2 + 2


def test_long_rows_far_apart_are_moved_without_what_lies_between() -> None:
    link = ArrayLink()
    write_block(link, 0, (400_000, 99_968), np.ones((2, 3, 8192), np.uint8))
    assert link.num_transfers == 2 * 3


@pytest.mark.skipif(not available(), reason="the native core is not built")
@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_the_native_link_moves_the_same_bytes(shape: tuple[int, int, int], strides: tuple[int, int]) -> None:
    plain, native = ArrayLink(), NativeLink(NativeMachine(WIDE, MEMORY_BYTES, threads=1))
    data = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
    for link in (plain, native):
        write_block(link, 128, strides, data)
    np.testing.assert_array_equal(native.read_dram(0, MEMORY_BYTES), plain.memory)
    np.testing.assert_array_equal(read_block(native, 128, shape, strides), data)
