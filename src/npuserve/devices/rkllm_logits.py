"""Rockchip's NPU a step at a time: logits from librkllmrt, tokens from our own sampler."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.devices.base import Capabilities, StepResult, nothing
from npuserve.devices.rkllm import RkllmSettings, open_library
from npuserve.drivers.rkllm import InferMode, Result
from npuserve.errors import DeviceError

# Prompt tokens of a run: a client that leaves waits for so many at most.
_MAX_ROWS = 512


class RkllmLogitsDevice:
    """A Device with one slot: each step is one run in LOGITS mode that adds its tokens to the runtime's history.

    The history can only grow or be cleared, so rows go on where the last step ended or begin at 0, as for a recurrent
    family. Opening runs one token to learn the vocabulary's size. Raises DeviceUnavailableError.
    """

    def __init__(self, settings: RkllmSettings) -> None:
        self._results: list[Result] = []
        self._run_id = 0
        self._num_written = 0
        self._rkllm = open_library(settings, self._called)
        try:
            vocab_size = len(self._run([0], keep_history=False))
        except BaseException:
            self._rkllm.close()
            raise
        self.capabilities = Capabilities(
            name="rkllm",
            num_slots=1,
            max_rows=min(_MAX_ROWS, settings.context_length),
            context_length=settings.context_length,
            vocab_size=vocab_size,
            recurrent=True,
        )

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        """See `Device.step`."""
        start = rows[0].position
        if start not in (0, self._num_written):
            raise ValueError(f"the runtime's history has {self._num_written} tokens and cannot go on at {start}")
        if any(row.slot != 0 or row.position != start + index for index, row in enumerate(rows)):
            raise ValueError("a step takes consecutive rows of slot 0")
        if start == 0:
            self._rkllm.clear_kv_cache()
        self._num_written = 0  # until the run has succeeded nothing is known to be there
        meanwhile()
        logits = self._run([row.token for row in rows], keep_history=True)
        if len(logits) != self.capabilities.vocab_size:
            raise DeviceError(f"the runtime gave {len(logits)} logits; it gave {self.capabilities.vocab_size} before")
        self._num_written = start + len(rows)
        if any(row.want_logits for row in rows[:-1]):
            raise ValueError("the runtime gives logits of a run's last token only")
        return StepResult(logits[None] if rows[-1].want_logits else np.empty((0, len(logits)), np.float32))

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """Always DeviceError: the runtime gives its history to nobody."""
        raise DeviceError("contexts of the NPU's runtime cannot be saved")

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        """Always DeviceError."""
        raise DeviceError("contexts of the NPU's runtime cannot be restored")

    def close(self) -> None:
        """See `Device.close`."""
        self._rkllm.close()

    def _run(self, tokens: list[int], *, keep_history: bool) -> NDArray[np.float32]:
        """Logits [vocab] after the last of `tokens`. Raises DeviceError."""
        self._run_id += 1
        self._results.clear()
        self._rkllm.run(self._run_id, tokens, InferMode.LOGITS, keep_history=keep_history)
        for result in reversed(self._results):
            if result.logits is not None:
                return np.asarray(result.logits[-1])
        raise DeviceError("the runtime gave no logits; this build may lack the mode, so set [llm] sampling = runtime")

    def _called(self, run_id: int, result: Result) -> None:
        if run_id in (0, self._run_id):
            self._results.append(result)
