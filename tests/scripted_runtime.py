"""A Runtime that says what it is told to, for tests of what stands above it."""

import threading
from collections.abc import Callable, Sequence

from npuserve.core import SamplingParams
from npuserve.devices.runtime import RuntimeCapabilities, RuntimePiece, RuntimeUsage
from npuserve.errors import DeviceError


class ScriptedRuntime:
    """Says `pieces` and ends; `endless` ones wait after each piece until the test allows the next or aborts.

    A `deaf` one ignores aborts until it is released. `failures` are the numbers of runs, from 0, that fail.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[bytes, int]] = ((b"all", 5), (b" well", 6)),
        *,
        endless: bool = False,
        deaf: bool = False,
        failures: Sequence[int] = (),
        usage: RuntimeUsage | None = None,
        context_length: int = 100,
    ) -> None:
        self.capabilities = RuntimeCapabilities("scripted", context_length, True)
        self.prompts: list[bytes | tuple[int, ...]] = []
        self.num_aborts = 0
        self.started = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self._pieces = [RuntimePiece(*piece) for piece in pieces]
        self._endless = endless
        self._deaf = deaf
        self._failures = failures
        self._usage = usage or RuntimeUsage()
        self._aborted = threading.Event()
        self._busy = threading.Lock()

    def generate(
        self, prompt: bytes | tuple[int, ...], sampling: SamplingParams, on_piece: Callable[[RuntimePiece], None]
    ) -> RuntimeUsage:
        assert self._busy.acquire(blocking=False), "a run while one is busy"
        try:
            number = len(self.prompts)
            self.prompts.append(prompt)
            self._aborted.clear()
            self.started.release()
            if number in self._failures:
                raise DeviceError(f"run {number} was told to fail")
            self._say(on_piece)
        finally:
            self._busy.release()
        return self._usage

    def abort(self) -> None:
        self.num_aborts += 1
        if not self._deaf:
            self._aborted.set()
            self._go_on.release()

    def step(self, count: int = 1) -> None:
        """Let an endless run say `count` pieces more."""
        self._go_on.release(count)

    def release(self) -> None:
        """Let a deaf run hear."""
        self._deaf = False

    def close(self) -> None:
        pass

    def _say(self, on_piece: Callable[[RuntimePiece], None]) -> None:
        while True:
            for piece in self._pieces:
                if self._endless:
                    self._go_on.acquire()
                if self._aborted.is_set():
                    return
                on_piece(piece)
            if not self._endless:
                return
