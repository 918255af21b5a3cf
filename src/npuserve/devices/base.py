"""The Device seam: rows in, logits out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from npuserve.core import Row


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device can do, as data; the engine reads this and never asks for a class.

    `max_rows` bounds a step. `recurrent` families have one slot and take their rows strictly in order.
    A page of PAGE_TOKENS positions is saved as `page_bytes` bytes (0: contexts cannot be saved), laid out as
    `page_format` says: pages are understood by devices of the same model and the same format only.
    """

    name: str
    num_slots: int
    max_rows: int
    context_length: int
    vocab_size: int
    recurrent: bool = False
    page_bytes: int = 0
    page_format: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Logits of the rows that wanted them, in row order: float32 [n, vocab_size], valid until the next step.

    `program_s` is host time spent on program and arguments, `device_s` the time of the run itself.
    """

    logits: NDArray[np.float32]
    program_s: float = 0.0
    device_s: float = 0.0


def nothing() -> None:
    """What the host does while a device runs, unless it is told something else."""


class Device(Protocol):
    """One accelerator with one model loaded; used by one thread only."""

    @property
    def capabilities(self) -> Capabilities: ...

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Run `rows`, writing each one's keys and values at (slot, position).

        Positions below a row's own must have been run in that slot before; those above are not read. `meanwhile` is
        called once, when only the device still has to work (not at all when it does not come to that): what others are
        waiting for is then in nobody's way.
        Raises DeviceError when the run failed, ValueError for rows that break the rules of `Row` or a limit.
        """

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """A copy, [page_bytes], of what `slot` holds for the positions of `page`, which all have been run.

        A recurrent family saves its state with it and can do so only where that stands: `page` is the one with the
        last position that was run, be it complete or not. Raises DeviceError, ValueError for a wrong slot or page.
        """

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        """Write saved pages, [page_bytes] each, over `page` and those after it; rows may follow where they ended.

        The positions before `page` hold what they held when it was saved. Raises as `save`.
        """

    def close(self) -> None:
        """Stop the device and release it; safe to call twice."""
