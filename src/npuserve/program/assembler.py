"""Instructions into a program: hardware loops, and shorthands for what kernels say most."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import ProgramError
from npuserve.isa.fields import Address, Value
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import BMode, VectorFunction, encode

MAX_LOOP_DEPTH = 4


def float_bits(value: float) -> int:
    """The fp32 bits of a number, as an immediate."""
    return int(np.float32(value).view(np.uint32))


class Assembler:
    """Collects the instructions of one program for one machine."""

    def __init__(self, machine: MachineConfig) -> None:
        self.machine = machine
        self._words: list[list[int]] = []
        self._depth = 0
        self._last_body_end = -1

    def emit(self, name: str, **operands: Value) -> None:
        """Append one instruction; EncodingError when an operand does not fit."""
        self._words.append(encode(name, **operands))

    def set(self, register: int, address: Value) -> None:
        """register = address."""
        source, offset = address if isinstance(address, Address) else (0, address)
        self.emit("ADDI", rd=register, ra=source, value=offset & 0xFFFF_FFFF)

    def step(self, register: int, amount: int) -> None:
        """register += amount."""
        self.set(register, Address(register, amount))

    @contextmanager
    def loop(self, count: Value) -> Iterator[None]:
        """Execute what is emitted inside `count` times; a count in a register may be 0."""
        if self._depth == MAX_LOOP_DEPTH:
            raise ProgramError(f"hardware loops nest to {MAX_LOOP_DEPTH}")
        start = len(self._words)
        self.emit("NOP")
        self._depth += 1
        yield
        self._depth -= 1
        if self._last_body_end == len(self._words):
            self.emit("NOP")  # two bodies may not end on the same instruction
        self._last_body_end = len(self._words)
        self._words[start] = encode("LOOP", count=count, body=len(self._words) - start - 1)

    def vop(
        self,
        func: VectorFunction,
        dst: Value,
        a: Value = 0,
        b: Value | float | None = None,
        *,
        rows: int = 1,
        cols: int,
        strides: tuple[int, int, int] = (0, 0, 0),
        mode: BMode = BMode.MATRIX,
    ) -> None:
        """One VOP; `strides` are those of dst, A and B in words. A float `b` is an immediate."""
        operands: dict[str, Value] = {"dst": dst, "a": a, "rows": rows, "cols": cols}
        operands |= {"drs": strides[0], "ars": strides[1], "brs": strides[2]}
        if isinstance(b, float):
            operands |= {"imm": float_bits(b), "bmode": BMode.IMMEDIATE}
        elif b is not None:
            operands |= {"b": b, "bmode": mode}
        self.emit("VOP", func=func, **operands)

    def program(self) -> NDArray[np.uint32]:
        """The finished program, [n, 8] words; ProgramError when it is longer than the instruction memory."""
        limit = self.machine.imem_instructions
        if len(self._words) > limit:
            raise ProgramError(
                f"the program has {len(self._words)} instructions, but the {self.machine.name} machine holds {limit}"
            )
        return np.array(self._words, np.uint32)
