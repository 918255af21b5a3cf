"""A small machine with a bench around it: programs of a few instructions, memories in floats."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npuserve.isa.fields import Address, Value
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import encode

Words = NDArray[np.uint32]
SMALL = MachineConfig("small", depth=32, mcols=4, act_rows=6, act_blocks=12, tmem_words=4096, imem_instructions=64)
SMALL_DRAM_BYTES = 1 << 16
Instruction = list[int]


class Machine(Protocol):
    """What the reference and the native machine have in common."""

    def load(self, program: Words | bytes) -> None: ...
    def load_from_dram(self, address: int, count: int) -> None: ...
    def run(self, args: Sequence[int] = (), max_instructions: int | None = None) -> int: ...
    def read_dram(self, address: int, num_bytes: int) -> NDArray[np.uint8]: ...
    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None: ...
    def read_tmem(self, address: int, num_words: int) -> Words: ...
    def write_tmem(self, address: int, words: Words) -> None: ...
    def read_act(self) -> tuple[NDArray[np.int8], Words]: ...
    def write_act(self, codes: NDArray[np.int8], scales: Words) -> None: ...
    def registers(self) -> Words: ...


def at(register: int, offset: int = 0) -> Address:
    return Address(register, offset)


def li(register: int, value: int) -> Instruction:
    return encode("LI", rd=register, value=value)


def f32(values: ArrayLike) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def bits(values: ArrayLike) -> Words:
    """fp32 bit patterns of numbers, flat."""
    return np.asarray(values, np.float32).ravel().view(np.uint32)


class Bench:
    """Runs instructions on a machine, and reads and writes its TMEM as floats."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def run(self, *instructions: Instruction, args: Sequence[int] = ()) -> int:
        """Run them and a HALT behind them; retired instructions."""
        self.machine.load(np.array([*instructions, encode("HALT")], np.uint32))
        return self.machine.run(args, max_instructions=1000)

    def do(self, name: str, **operands: Value) -> None:
        """Run one instruction."""
        self.run(encode(name, **operands))

    def put(self, address: int, values: ArrayLike) -> None:
        self.put_bits(address, bits(values))

    def get(self, address: int, count: int) -> list[float]:
        return [float(value) for value in self.get_bits(address, count).view(np.float32)]

    def put_bits(self, address: int, words: ArrayLike) -> None:
        self.machine.write_tmem(address, np.asarray(words, np.uint32).ravel())

    def get_bits(self, address: int, count: int) -> Words:
        return self.machine.read_tmem(address, count)

    def put_dram_words(self, address: int, words: ArrayLike) -> None:
        self.machine.write_dram(address, np.asarray(words, np.uint32).ravel().view(np.uint8))

    def get_dram_words(self, address: int, count: int) -> Words:
        return self.machine.read_dram(address, 4 * count).view(np.uint32)
