"""Stands in for luck where a test needs something to be still running."""

import threading

from patience import WAIT_S


class Brake:
    """Halts who passes for the n-th time until it is released, so that what ran then still runs, however long it takes.

    One thread passes; any other may set the brake while nobody passes, wait for it and release it, once.
    """

    def __init__(self) -> None:
        self._halted, self._released = threading.Event(), threading.Event()
        self._num_left: int | None = None

    def halt_after(self, count: int) -> None:
        """Let `count` pass from now on and halt the next."""
        self._num_left = count

    def wait_until_halted(self) -> None:
        assert self._halted.wait(WAIT_S), "nobody came"

    def release(self) -> None:
        """Let it pass, and all after it."""
        self._released.set()

    def pass_by(self) -> None:
        if self._num_left == 0:
            self._halted.set()
            assert self._released.wait(WAIT_S), "the brake was never released"
        if self._num_left is not None:
            self._num_left -= 1
