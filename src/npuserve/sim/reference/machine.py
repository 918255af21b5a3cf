"""ReferenceMachine: the host's side of the specification, and the loop that fetches and executes."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import EncodingError, ProgramError
from npuserve.isa.fields import WORD_MASK, WORDS_PER_INSTRUCTION, Address
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import decode
from npuserve.sim.arithmetic import Words
from npuserve.sim.reference import control, delta, matrix, quantizer, transfer, vector
from npuserve.sim.reference.state import MAX_ARGUMENTS, Operands, State

EXECUTE: dict[str, Callable[[State, Operands], None]] = {
    "NOP": control.no_operation,
    "HALT": control.halt,
    "LI": control.load_immediate,
    "ADDI": control.add_immediate,
    "LOOP": control.loop,
    "BAR": control.no_operation,
    "RLD": control.register_load,
    "WAITW": control.wait_word,
    "LD": transfer.load,
    "ST": transfer.store,
    "DSTEP": delta.delta_step,
    "MM": matrix.matrix_multiply,
    "QACT": quantizer.quantize_activations,
    "QST": quantizer.quantize_store,
    "VOP": vector.vector_operation,
    "GATHER": transfer.gather,
}


class ReferenceMachine:
    """One slice of the openTPU card, executed instruction by instruction in NumPy.

    `dram_bytes` replaces the configuration's. Memories start as zeros and keep their contents from run to run.
    """

    def __init__(self, config: MachineConfig, dram_bytes: int | None = None) -> None:
        self.config = config
        self._state = State(config, config.dram_bytes if dram_bytes is None else dram_bytes)

    def load(self, program: NDArray[np.uint32] | bytes) -> None:
        """Fill the instruction memory from uint32 [n, 8] or the same as little-endian bytes.

        Raises ProgramError for more instructions than the memory holds or an incomplete one.
        """
        words = np.frombuffer(program, "<u4") if isinstance(program, bytes) else np.asarray(program).reshape(-1)
        if words.size % WORDS_PER_INSTRUCTION:
            raise ProgramError(f"a program of {words.size} words, but instructions have {WORDS_PER_INSTRUCTION}")
        self._state.load(words.reshape(-1, WORDS_PER_INSTRUCTION))

    def load_from_dram(self, address: int, count: int) -> None:
        """Fill the instruction memory from `count` instructions at a DRAM byte address, a multiple of D."""
        self._state.load_from_dram(address, count)

    def run(self, args: Sequence[int] = (), max_instructions: int | None = None) -> int:
        """Run from the start to HALT with arguments in R8 and up; the number of retired instructions.

        Raises MachineFault where an instruction breaks a rule or `max_instructions` have retired without HALT.
        """
        if len(args) > MAX_ARGUMENTS:
            raise ProgramError(f"{len(args)} run arguments, but there are {MAX_ARGUMENTS} registers for them")
        state = self._state
        state.arguments = tuple(int(value) & WORD_MASK for value in args)
        state.start()
        state.halted = False
        retired = 0
        try:
            while not state.halted:
                state.require(max_instructions is None or retired < max_instructions, f"no HALT after {retired} steps")
                self._step()
                retired += 1
        finally:
            state.halted = True
        return retired

    def _step(self) -> None:
        state = self._state
        state.require(state.pc < len(state.program), f"pc is past the end of {len(state.program)} instructions")
        try:
            operation, values = decode([int(word) for word in state.program[state.pc]])
        except EncodingError as error:
            raise state.fault(str(error)) from None
        operands = {
            name: state.address(value) if isinstance(value, Address) else value for name, value in values.items()
        }
        state.next_pc = state.pc + 1
        was_at, was_in = state.pc, state.loops[-1] if state.loops else None
        EXECUTE[operation.name](state, operands)
        if was_in is not None and was_at == was_in.end and state.loops:
            was_in.remaining -= 1
            if was_in.remaining:
                state.next_pc = was_in.start
            else:
                state.loops.pop()
        state.pc = state.next_pc

    def read_dram(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """A copy of DRAM bytes."""
        self._check_span("DRAM", address, num_bytes, self._state.dram_bytes)
        return self._state.dram[address : address + num_bytes].copy()

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        """Copy bytes into DRAM."""
        self._check_span("DRAM", address, data.size, self._state.dram_bytes)
        self._state.dram[address : address + data.size] = data

    def read_tmem(self, address: int, num_words: int) -> Words:
        """A copy of TMEM words."""
        self._check_span("TMEM", address, num_words, self.config.tmem_words)
        return self._state.tmem[address : address + num_words].copy()

    def write_tmem(self, address: int, words: Words) -> None:
        """Copy words into TMEM."""
        self._check_span("TMEM", address, words.size, self.config.tmem_words)
        self._state.tmem[address : address + words.size] = words

    def read_act(self) -> tuple[NDArray[np.int8], Words]:
        """Copies of the ACT RAM: codes int8 [act_rows, act_blocks * D], scales uint32 [act_rows, act_blocks]."""
        return self._state.act.reshape(self.config.act_rows, -1).copy(), self._state.act_scales.copy()

    def write_act(self, codes: NDArray[np.int8], scales: Words) -> None:
        """Overwrite the whole ACT RAM; shapes as `read_act` gives them."""
        self._state.act[:] = codes.reshape(self._state.act.shape)
        self._state.act_scales[:] = scales

    def registers(self) -> Words:
        """A copy of R0..R15, uint32 [16]."""
        return self._state.registers.copy()

    def _check_span(self, name: str, start: int, size: int, limit: int) -> None:
        if not 0 <= start <= start + size <= limit:
            raise ProgramError(f"{name} {start:#x}..{start + size:#x} is outside of its {limit:#x} bytes or words")
