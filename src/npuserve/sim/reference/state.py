"""Everything an instruction can read or write, with the bounds checks that make a wrong one a fault."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import MachineFault, ProgramError
from npuserve.isa.fields import WORD_MASK, WORDS_PER_INSTRUCTION, Address
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import disassemble
from npuserve.sim.arithmetic import Words

Indices = NDArray[np.int64]
NUM_REGISTERS = 16
FIRST_ARGUMENT = 8
MAX_ARGUMENTS = 8


@dataclass(slots=True)
class Loop:
    """One active LOOP: its body is instructions start..end, and `remaining` executions are to come, this one too."""

    start: int
    end: int
    remaining: int


@dataclass(slots=True)
class State:
    """Memories, registers and sequencer of one slice; all memories start as zeros.

    dram: uint8 [dram_bytes]. tmem: uint32 [tmem_words]. act: int8 [act_rows, act_blocks, D]. act_scales: uint32
    [act_rows, act_blocks]. registers: uint32 [16]. program: uint32 [n, 8]. Accesses take int64 arrays of any shape,
    made by dram_grid (bytes) and tmem_grid (words); an index outside raises MachineFault, like every broken rule.
    """

    config: MachineConfig
    dram_bytes: int
    dram: NDArray[np.uint8] = field(init=False)
    tmem: Words = field(init=False)
    act: NDArray[np.int8] = field(init=False)
    act_scales: Words = field(init=False)
    registers: Words = field(init=False)
    program: Words = field(init=False)
    arguments: tuple[int, ...] = ()
    pc: int = 0
    next_pc: int = 0
    loops: list[Loop] = field(default_factory=list)
    halted: bool = True

    def __post_init__(self) -> None:
        config = self.config
        self.dram = np.zeros(self.dram_bytes, np.uint8)
        self.tmem = np.zeros(config.tmem_words, np.uint32)
        self.act = np.zeros((config.act_rows, config.act_blocks, config.depth), np.int8)
        self.act_scales = np.zeros((config.act_rows, config.act_blocks), np.uint32)
        self.registers = np.zeros(NUM_REGISTERS, np.uint32)
        self.program = np.zeros((0, WORDS_PER_INSTRUCTION), np.uint32)

    def start(self) -> None:
        """Registers, loop stack and pc as at the start of a run: R0..R7 = 0, R8..R15 the arguments."""
        self.registers[:] = 0
        self.registers[FIRST_ARGUMENT : FIRST_ARGUMENT + len(self.arguments)] = self.arguments
        self.loops.clear()
        self.pc = self.next_pc = 0

    def load(self, program: Words) -> None:
        """Fill the instruction memory; ProgramError for more instructions than it holds."""
        if len(program) > self.config.imem_instructions:
            raise ProgramError(
                f"the program has {len(program)} instructions, but {self.config.name} holds"
                f" {self.config.imem_instructions}; split it and chain the parts with HALT"
            )
        self.program = program.astype(np.uint32)

    def load_from_dram(self, address: int, count: int) -> None:
        """Fill the instruction memory from `count` instructions at a D-aligned DRAM byte address."""
        self.require(address % self.config.depth == 0, f"program address {address:#x} is no multiple of D")
        limit = self.config.imem_instructions
        self.require(1 <= count <= limit, f"a program of {count} instructions, but 1..{limit} fit")
        words = self.read_words(self.dram_grid(address, count * WORDS_PER_INSTRUCTION, 4))
        self.program = words.reshape(count, WORDS_PER_INSTRUCTION)

    def fault(self, reason: str) -> MachineFault:
        """The error to raise for the instruction at pc."""
        if self.halted:
            return MachineFault(reason)
        text = disassemble(list(map(int, self.program[self.pc]))) if self.pc < len(self.program) else ""
        return MachineFault(reason, pc=self.pc, instruction=text)

    def require(self, holds: bool | np.bool_, reason: str) -> None:
        if not holds:
            raise self.fault(reason)

    def require_range(self, name: str, value: int, limit: int) -> None:
        """Sizes are 1..limit; 0 is an error everywhere but in LD and ST."""
        self.require(1 <= value <= limit, f"{name} is {value}, but 1..{limit} is possible")

    def address(self, operand: Address) -> int:
        """R[register] + offset, wrapped once to 32 bits."""
        return (int(self.registers[operand.register]) + operand.offset) & WORD_MASK

    def set_register(self, register: int, value: int) -> None:
        if register != 0:
            self.registers[register] = value & WORD_MASK

    def dram_grid(self, start: int, rows: int, row_stride: int, columns: int = 1, column_stride: int = 1) -> Indices:
        """Byte addresses start + r * row_stride + c * column_stride, int64 [rows, columns], all inside DRAM.

        Such addresses do not wrap at 32 bits, so the last one is the largest.
        """
        last = start + (rows - 1) * row_stride + (columns - 1) * column_stride
        self.require(last < self.dram_bytes, f"DRAM byte {last:#x} is outside of {self.dram_bytes:#x} bytes")
        return _grid(start, rows, row_stride, columns, column_stride)

    def tmem_grid(self, start: int, rows: int, row_stride: int, columns: int = 1, column_stride: int = 1) -> Indices:
        """As dram_grid, in words of TMEM."""
        last = start + (rows - 1) * row_stride + (columns - 1) * column_stride
        limit = self.config.tmem_words
        self.require(last < limit, f"TMEM word {last} is outside of {limit} words")
        return _grid(start, rows, row_stride, columns, column_stride)

    def word_bytes(self, addresses: Indices) -> Indices:
        """The byte addresses [.., 4] of DRAM words, which must be multiples of 4."""
        self.require(not np.any(addresses % 4), "a DRAM word address is no multiple of 4")
        return addresses[..., None] + np.arange(4)

    def read_words(self, addresses: Indices) -> Words:
        raw = self.dram[self.word_bytes(addresses)]
        return np.ascontiguousarray(raw).view("<u4")[..., 0].astype(np.uint32)

    def write_words(self, addresses: Indices, words: Words) -> None:
        spread = self.word_bytes(addresses)
        self.dram[spread] = np.ascontiguousarray(words.astype("<u4"))[..., None].view(np.uint8)

    def write_tmem(self, indices: Indices, words: Words) -> None:
        """Where an index stands twice, the last one in row-major order wins."""
        unique, last = _last_writers(indices)
        self.tmem[unique] = words.ravel()[last]

    def write_bytes(self, addresses: Indices, values: NDArray[np.uint8]) -> None:
        """Where an address stands twice, the last one in row-major order wins."""
        unique, last = _last_writers(addresses)
        self.dram[unique] = values.ravel()[last]


def _last_writers(targets: Indices) -> tuple[Indices, Indices]:
    """Each different target, and the row-major number of the last element that is written there.

    NumPy leaves open which of equal indices wins an assignment, so they are made unique first.
    """
    unique, from_behind = np.unique(targets.ravel()[::-1], return_index=True)
    return unique, targets.size - 1 - from_behind


def _grid(start: int, rows: int, row_stride: int, columns: int, column_stride: int) -> Indices:
    r = np.arange(rows, dtype=np.int64)[:, None] * row_stride
    return start + r + np.arange(columns, dtype=np.int64) * column_stride


Operands = dict[str, int]
"""Operand values by the names of the instruction table: addresses resolved, registers as their numbers."""
