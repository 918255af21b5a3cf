"""The console script on the real SmolLM2, as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.errors import DownloadError
from npuserve.sim import native

START_TIMEOUT_S = 90


@dataclass
class RunningServer:
    """A started otpu-serve; `log` is what it printed."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The checkpoint, fetched when it is missing."""
    if not native.available():
        pytest.skip("the native simulator was not built")
    try:
        return ensure_checkpoint("smollm2")
    except DownloadError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")


def start_server(log: Path, *options: str, environment: dict[str, str] | None = None) -> RunningServer:
    """Start on a free port and wait for the banner; fails with the log when it does not come."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", "smollm2", "--port", "0", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := re.search(r"listening on (http://\S+)/v1", log.read_text()):
            return RunningServer(process, found[1], log)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(f"otpu-serve did not start:\n{log.read_text()}")


@pytest.fixture
def start(smollm2: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts servers and kills what is left of them."""
    started: list[RunningServer] = []

    def begin(*options: str, environment: dict[str, str] | None = None) -> RunningServer:
        server = start_server(tmp_path / f"server{len(started)}.log", *options, environment=environment)
        started.append(server)
        return server

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for the tests of a module."""
    running = start_server(tmp_path_factory.mktemp("serve") / "server.log")
    yield running
    running.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened
