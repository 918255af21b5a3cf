"""The machine in C++: bit for bit the reference, at the speed of the processor's vector units.

The extension is optional at install; where it is missing, `available()` is false and making a machine says why.
A machine belongs to one thread at a time; while it runs the GIL is free and other calls on it raise RuntimeError.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import DeviceUnavailableError, MachineFault, ProgramError
from npuserve.isa.fields import WORD_MASK, WORDS_PER_INSTRUCTION
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.isa.spec import Operation, VectorFunction, decode, disassemble
from npuserve.sim.link import SimulatorLink

if TYPE_CHECKING:
    from npuserve.sim import _native

NO_LIMIT = 2**64 - 1
INSTRUCTION_BYTES = 4 * WORDS_PER_INSTRUCTION


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """Instructions of one kind (VOP: of one function) that ran while profiling was on."""

    name: str
    count: int
    seconds: float


def available() -> bool:
    """Whether the compiled extension is there."""
    try:
        import_module("npuserve.sim._native")
    except ImportError:
        return False
    return True


def kernel_sets() -> list[str]:
    """Names of the kernel sets that run on this CPU, best first."""
    names: list[str] = _extension().kernel_sets()
    return names


class NativeMachine:
    """One machine of `config`'s sizes with zeroed memories; `dram_bytes` replaces the configuration's.

    `threads` counts the calling thread; 0 takes what affinity and container quota allow. `kernels` forces a kernel
    set (see `kernel_sets`); None takes the best one. Matrices that stay unchanged in DRAM are kept in a packed copy,
    `shadow_bytes` of memory at most (None: half of the computer's; 0: none). Results depend on none of the three.

    Raises DeviceUnavailableError without the extension, ValueError for sizes or kernels that cannot be.
    """

    def __init__(
        self,
        config: MachineConfig = WIDE,
        dram_bytes: int | None = None,
        *,
        threads: int = 0,
        kernels: str | None = None,
        shadow_bytes: int | None = None,
    ) -> None:
        self.config = config
        self.dram_bytes = config.dram_bytes if dram_bytes is None else dram_bytes
        self._machine: _native.Machine = _extension().Machine(
            depth=config.depth,
            mcols=config.mcols,
            act_rows=config.act_rows,
            act_blocks=config.act_blocks,
            tmem_words=config.tmem_words,
            imem_instructions=config.imem_instructions,
            dram_bytes=self.dram_bytes,
            num_threads=threads,
            shadow_limit_bytes=_half_of_memory_bytes() if shadow_bytes is None else shadow_bytes,
            kernels=kernels or "",
            dstep=config.dstep,
        )

    def load(self, program: NDArray[np.uint32] | bytes) -> None:
        """Fill the instruction memory from uint32 [n, 8] or the same as little-endian bytes.

        Programs that were loaded before are kept decoded, so alternating between a few is cheap. Raises ProgramError
        for more instructions than the memory holds or an incomplete one.
        """
        raw = np.frombuffer(program, np.uint8) if isinstance(program, bytes) else _raw(program)
        count, rest = divmod(raw.size, INSTRUCTION_BYTES)
        if rest or count > self.config.imem_instructions:
            raise ProgramError(
                f"a program of {raw.size} bytes, but it must be whole instructions of {INSTRUCTION_BYTES} and"
                f" {self.config.name} holds {self.config.imem_instructions} of them"
            )
        self._machine.load(raw)

    def load_from_dram(self, address: int, count: int) -> None:
        """Fill the instruction memory from `count` instructions at a DRAM byte address, a multiple of D.

        The program is a copy: later writes to DRAM do not change it. Raises MachineFault.
        """
        try:
            self._machine.load_from_dram(address, count)
        except _extension().Fault as error:
            raise MachineFault(str(error)) from None

    def run(self, args: Sequence[int] = (), max_instructions: int | None = None) -> int:
        """Run from the start to HALT with arguments in R8 and up; the number of retired instructions.

        Raises MachineFault where an instruction breaks a rule or `max_instructions` have retired without HALT.
        """
        limit = NO_LIMIT if max_instructions is None else max_instructions
        try:
            return self._machine.run([int(value) & WORD_MASK for value in args], limit)
        except _extension().Fault as error:
            pc, words = self._machine.fault_place()
            raise MachineFault(str(error), pc=pc, instruction=disassemble(words) if words else "") from None

    def read_dram(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """A copy of DRAM bytes."""
        self._check_span("DRAM", address, num_bytes, self.dram_bytes)
        return self._machine.read_dram(address, num_bytes)

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        """Copy bytes into DRAM."""
        self._check_span("DRAM", address, data.size, self.dram_bytes)
        self._machine.write_dram(address, _raw(data))

    def dram_view(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """DRAM itself, read-only, without a copy; it changes as programs write and keeps the machine alive."""
        self._check_span("DRAM", address, num_bytes, self.dram_bytes)
        return self._machine.dram_view(address, num_bytes)

    def read_block(self, address: int, shape: tuple[int, int, int], strides: tuple[int, int]) -> NDArray[np.uint8]:
        """A copy of DRAM bytes, `shape`, whose last axis is contiguous and whose others are `strides` bytes apart."""
        size = (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1] + shape[2]
        return np.lib.stride_tricks.as_strided(self.dram_view(address, size), shape, (*strides, 1)).copy()

    def write_block(self, address: int, strides: tuple[int, int], data: NDArray[np.uint8]) -> None:
        """Copy contiguous `data` [groups, rows, bytes] into DRAM, laid out as `read_block` reads it."""
        size = (data.shape[0] - 1) * strides[0] + (data.shape[1] - 1) * strides[1] + data.shape[2]
        self._check_span("DRAM", address, size, self.dram_bytes)
        self._machine.write_block(address, address + size, *strides, np.ascontiguousarray(data))

    def expect(self, address: int, num_bytes: int) -> None:
        """Have DRAM that was not touched yet made ready by another thread; contents stay. Returns at once."""
        self._check_span("DRAM", address, num_bytes, self.dram_bytes)
        self._machine.expect(address, num_bytes)

    def map_image(self, path: str | os.PathLike[str], *, file_offset: int, num_bytes: int, address: int) -> None:
        """Show a part of a file in DRAM at `address` without reading it now.

        Offset and address are multiples of 4096. Programs may write there; the file is never changed. It must not
        shrink meanwhile. Raises OSError, ValueError for a wrong offset, address or size.
        """
        self._check_span("DRAM", address, num_bytes, self.dram_bytes)
        self._machine.map_image(os.fspath(path), file_offset, num_bytes, address)

    def prepare(self, *, sa: int, rs: int, ssa: int = 0, srs: int = 0, n: int, kb: int, unit: bool = False) -> None:
        """Pack a matrix now that MM will stream with just these operands, instead of at its second use.

        Raises MachineFault for operands that MM would refuse.
        """
        try:
            self._machine.prepare(sa, rs, ssa, srs, n, kb, unit)
        except _extension().Fault as error:
            raise MachineFault(str(error)) from None

    def read_tmem(self, address: int, num_words: int) -> NDArray[np.uint32]:
        """A copy of TMEM words."""
        self._check_span("TMEM", address, num_words, self.config.tmem_words)
        return self._machine.read_tmem(address, num_words)

    def write_tmem(self, address: int, words: NDArray[np.uint32]) -> None:
        """Copy words into TMEM."""
        self._check_span("TMEM", address, words.size, self.config.tmem_words)
        self._machine.write_tmem(address, np.ascontiguousarray(words).reshape(-1))

    def read_act(self) -> tuple[NDArray[np.int8], NDArray[np.uint32]]:
        """Copies of the ACT RAM: codes int8 [act_rows, act_blocks * D], scales uint32 [act_rows, act_blocks]."""
        return self._machine.read_act()

    def write_act(self, codes: NDArray[np.int8], scales: NDArray[np.uint32]) -> None:
        """Overwrite the whole ACT RAM; shapes as `read_act` gives them."""
        self._machine.write_act(np.ascontiguousarray(codes), np.ascontiguousarray(scales))

    def registers(self) -> NDArray[np.uint32]:
        """R0..R15 as the last run left them, uint32 [16]."""
        return np.array(self._machine.registers(), np.uint32)

    @property
    def retired(self) -> int:
        """Instructions retired by the last run, also when it ended in a fault."""
        return self._machine.retired

    @property
    def num_threads(self) -> int:
        return self._machine.num_threads

    @property
    def kernels(self) -> str:
        """Name of the kernel set in use."""
        return self._machine.kernels

    @property
    def packed_bytes(self) -> int:
        """Memory held by packed copies of matrices."""
        return self._machine.packed_bytes

    def set_profiling(self, on: bool) -> None:
        """Start counting instructions and their time from zero, or stop."""
        self._machine.set_profiling(on)

    def profile(self) -> list[ProfileLine]:
        """What ran since profiling was switched on, most expensive first."""
        lines = [
            ProfileLine(_name(opcode, function), count, seconds)
            for opcode, function, count, seconds in self._machine.profile()
        ]
        return sorted(lines, key=lambda line: -line.seconds)

    def _check_span(self, name: str, start: int, size: int, limit: int) -> None:
        if not 0 <= start <= start + size <= limit:
            raise ProgramError(f"{name} {start:#x}..{start + size:#x} is outside of its {limit:#x} bytes or words")


class NativeLink(SimulatorLink):
    """The native machine as a card: an image file is mapped, so a server starts without reading it."""

    def __init__(self, machine: NativeMachine) -> None:
        super().__init__(machine, machine.config)
        self.machine = machine

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        """See `Link.read_dram`: the memory itself."""
        return self.machine.dram_view(address, size)

    def read_block(self, address: int, shape: tuple[int, int, int], strides: tuple[int, int]) -> NDArray[np.uint8]:
        """See `drivers.blocks`: one strided copy."""
        return self.machine.read_block(address, shape, strides)

    def write_block(self, address: int, strides: tuple[int, int], data: NDArray[np.uint8]) -> None:
        """See `drivers.blocks`: in one go."""
        self.machine.write_block(address, strides, data)

    def expect(self, address: int, size: int) -> None:
        """See `drivers.base.LazyLink`."""
        self.machine.expect(address, size)

    def load_file(self, path: Path, offset: int, size: int, address: int) -> None:
        self.machine.map_image(path, file_offset=offset, num_bytes=size, address=address)


def native_link(config: MachineConfig, dram_bytes: int, threads: int = 0) -> NativeLink:
    """A new native machine behind a card's registers; errors as NativeMachine."""
    return NativeLink(NativeMachine(config, dram_bytes, threads=threads))


def _raw(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _name(opcode: int, function: int) -> str:
    operation: Operation = decode([opcode, *[0] * 7])[0]
    return operation.name if function < 0 else f"{operation.name} {VectorFunction(function).name}"


def _half_of_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _extension() -> Any:
    """The compiled module; `_native.pyi` has its types, which an import at run time cannot give."""
    try:
        return import_module("npuserve.sim._native")
    except ImportError as error:
        raise DeviceUnavailableError(
            f"the native simulator is not installed ({error}); install g++, then run"
            " `pip install --force-reinstall --no-deps .` in the clone of npuserve"
        ) from error
