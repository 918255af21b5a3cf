"""The Link seam: the only way from our software to a card, real, modelled or simulated."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Link(Protocol):
    """Register file and DRAM of one card. Offsets and addresses are bytes; registers are 32 bits wide.

    DRAM addresses are logical (channel interleave is the link's own business). Every method may raise
    DeviceError; none retries.
    """

    def read_register(self, offset: int) -> int: ...

    def write_register(self, offset: int, value: int) -> None: ...

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        """`size` bytes of card memory; what is returned may change with the next run."""

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        """Copy contiguous bytes into card memory; address and size are whole 64-byte beats."""

    def load_file(self, path: Path, offset: int, size: int, address: int) -> None:
        """Fill card memory from a file; offset, size and address are whole 4096-byte pages."""

    def close(self) -> None: ...


@runtime_checkable
class LazyLink(Protocol):
    """A Link whose memory costs much at its first use."""

    def expect(self, address: int, size: int) -> None:
        """Prepare for the use of bytes from `address` on; returns at once."""
