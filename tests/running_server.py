"""The console script on the real SmolLM2, as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from patience import WAIT_S


@dataclass
class RunningServer:
    """A started otpu-serve; `log` is what it printed."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


Start = Callable[..., RunningServer]


def start_server(log: Path, *options: str, environment: dict[str, str] | None = None) -> RunningServer:
    """Start on a free port and wait for the banner; fails with the log when it does not come."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", "smollm2", "--port", "0", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := re.search(r"listening on (http://\S+)/v1", log.read_text()):
            return RunningServer(process, found[1], log)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(f"otpu-serve did not start:\n{log.read_text()}")
