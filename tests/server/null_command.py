"""otpu-serve with the null device in the place of the simulator; run by test_console.py as a process of its own."""

import sys

from live_server import Script
from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.cli import otpu_serve
from npuserve.config import ServeSettings
from npuserve.devices.null import NullDevice


def open_null(settings: ServeSettings, checkpoint: Checkpoint) -> NullDevice:
    endless = "endless" in str(checkpoint.path)
    return NullDevice(
        vocab_size=602,
        num_slots=settings.slots,
        context_length=settings.cap,
        script=Script({"": "all is well. "}, endless=endless),
        step_delay_s=0.01 if endless else 0.0,
    )


if __name__ == "__main__":
    otpu_serve._open_device = open_null
    sys.exit(otpu_serve.main())
