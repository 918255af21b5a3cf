"""Started servers for the end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.errors import DownloadError
from npuserve.sim import native
from running_server import RunningServer, Start, start_server


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The checkpoint, fetched when it is missing."""
    if not native.available():
        pytest.skip("the native simulator was not built")
    try:
        return ensure_checkpoint("smollm2")
    except DownloadError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")


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
