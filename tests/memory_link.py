"""A card of plain memory: registers and DRAM that keep what is written, and runs that only set STATUS."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npuserve.drivers.registers import CARD_ID, Caps, Control, Register, Status

READY = Status.WR_IDLE | Status.CALIB0 | Status.CALIB1


class MemoryLink:
    """Records what it is asked for. `outcome` is the STATUS that the next runs end with; None never ends."""

    def __init__(self, dram_bytes: int, *, card_id: int = CARD_ID, caps: Caps = Caps.GEN) -> None:
        self.dram = np.zeros(dram_bytes, np.uint8)
        self.registers: dict[int, int] = {Register.ID: card_id, Register.CAPS: int(caps), Register.ICOUNT: 0}
        self.outcome: Status | None = Status.HALTED
        self.controls: list[Control] = []
        self.written: list[tuple[int, int]] = []
        self.loaded_files: list[tuple[Path, int, int, int]] = []
        self.num_status_reads = 0
        self.num_closes = 0
        self._status = READY

    def forget(self) -> None:
        """Drop what is recorded so far; memory stays."""
        self.controls.clear()
        self.written.clear()
        self.num_status_reads = 0

    def read_register(self, offset: int) -> int:
        if offset == Register.STATUS:
            self.num_status_reads += 1
            return int(self._status)
        return self.registers.get(offset, 0xDEAD_BEEF)

    def write_register(self, offset: int, value: int) -> None:
        if offset != Register.CTRL:
            self.registers[offset] = value
            return
        self.controls.append(Control(value))
        if value & Control.RUN:
            self._status = READY | (Status.RUN if self.outcome is None else self.outcome)

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        return self.dram[address : address + size].copy()

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        self.written.append((address, data.size))
        self.dram[address : address + data.size] = data

    def load_file(self, path: Path, offset: int, size: int, address: int) -> None:
        self.loaded_files.append((path, offset, size, address))

    def close(self) -> None:
        self.num_closes += 1
