"""otpu-serve with the null device in the place of the simulator; run by test_console.py as a process of its own."""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from live_server import Script
from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.cli import otpu_serve
from npuserve.config import ServeSettings
from npuserve.core import Row
from npuserve.devices.base import StepResult, nothing
from npuserve.devices.null import NullDevice


class Held(NullDevice):
    """Stands still after a few steps as long as there is a file `hold`."""

    hold = Path()

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        while self.num_steps >= 5 and self.hold.exists():
            time.sleep(0.01)
        return super().step(rows, meanwhile)


def open_null(settings: ServeSettings, checkpoint: Checkpoint) -> NullDevice:
    endless = "endless" in str(checkpoint.path)
    Held.hold = checkpoint.path / "hold"
    return Held(
        vocab_size=602,
        num_slots=settings.slots,
        context_length=settings.cap,
        script=Script({"": "all is well. "}, endless=endless),
        step_delay_s=0.01 if endless else 0.0,
    )


if __name__ == "__main__":
    # As in a terminal, also where the tests run under nohup or in the background.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    otpu_serve._open_device = open_null
    sys.exit(otpu_serve.main())
