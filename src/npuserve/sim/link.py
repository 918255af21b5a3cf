"""The simulator behind the card's own registers, so that the device above cannot tell it from a card."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from npuserve.drivers.registers import (
    CARD_ID,
    NUM_ARGUMENTS,
    Caps,
    Control,
    Extensions,
    Register,
    Status,
    extensions_word,
    version_word,
)
from npuserve.errors import DeviceError, MachineFault
from npuserve.isa.machine import MachineConfig

CAPS = Caps.W4 | Caps.PAIR | Caps.ACT_ROWS | Caps.ARGS | Caps.GEN | Caps.WAITW
"""What every machine has."""
REGMAP = 3
UNDEFINED = 0xDEAD_BEEF
_RUN, _LOAD = Control.RUN.value, Control.LOAD.value
_ERROR, _HALTED = Status.ERROR.value, Status.HALTED.value


class Machine(Protocol):
    """What the link needs of a simulator; the reference and the native core both have it."""

    def load_from_dram(self, address: int, count: int) -> None: ...

    def run(self, args: list[int] = ..., /) -> int: ...

    def read_dram(self, address: int, size: int, /) -> NDArray[np.uint8]: ...

    def write_dram(self, address: int, data: NDArray[np.uint8], /) -> None: ...


class SimulatorLink:
    """One simulated card. A run takes place inside the register write that starts it.

    A program that breaks a rule sets STATUS.ERROR as on the card and also raises MachineFault, which says where.
    """

    def __init__(self, machine: Machine, config: MachineConfig) -> None:
        self._machine = machine
        self._values = {
            Register.ID: CARD_ID,
            Register.VERSION: version_word(config.depth, config.mcols, config.lanes),
            Register.REGMAP: REGMAP,
            Register.CAPS: int(CAPS | Caps.DSTEP if config.dstep else CAPS),
            Register.ACT_ROWS: config.act_rows,
            Register.EXTENSIONS: extensions_word(Extensions.NVFP4),
        }
        self._arguments = [0] * NUM_ARGUMENTS
        # A plain number: flags cost microseconds each time, and every token comes by here.
        self._status = (Status.HALTED | Status.WR_IDLE | Status.CALIB0 | Status.CALIB1).value

    def read_register(self, offset: int) -> int:
        if offset == Register.STATUS:
            return self._status
        if 0 <= (index := (offset - Register.ARG0) // 4) < NUM_ARGUMENTS:
            return self._arguments[index]
        return self._values.get(Register(offset), 0) if offset in set(Register) else UNDEFINED

    def write_register(self, offset: int, value: int) -> None:
        if offset == Register.CTRL:
            self._control(int(value))
        elif 0 <= (index := (offset - Register.ARG0) // 4) < NUM_ARGUMENTS:
            self._arguments[index] = value
        elif offset in (Register.PROG_ADDR, Register.PROG_N, Register.SCRATCH):
            self._values[Register(offset)] = value
        else:
            raise DeviceError(f"register {offset:#x} cannot be written")

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        return self._machine.read_dram(address, size)

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        self._machine.write_dram(address, data)

    def load_file(self, path: Path, offset: int, size: int, address: int) -> None:
        chunk = 1 << 24
        with path.open("rb") as file:
            if (found := path.stat().st_size) < offset + size:
                raise DeviceError(f"{path}: the file has {found} bytes, but {offset + size} are needed; build it again")
            file.seek(offset)
            for done in range(0, size, chunk):
                data = file.read(min(chunk, size - done))
                self.write_dram(address + done, np.frombuffer(data, np.uint8))

    def close(self) -> None:
        """Nothing to release: the machine's memory goes with it."""

    def _control(self, value: int) -> None:
        if value & _LOAD and not value & _RUN:
            address = self._values.get(Register.PROG_ADDR, 0)
            self._machine.load_from_dram(address, self._values.get(Register.PROG_N, 0))
        if value & _RUN:
            self._run()

    def _run(self) -> None:
        self._status &= ~(_ERROR | _HALTED)
        try:
            self._values[Register.ICOUNT] = self._machine.run(self._arguments) & 0xFFFF_FFFF
        except MachineFault:
            self._status |= _ERROR
            raise
        finally:
            self._status |= _HALTED
