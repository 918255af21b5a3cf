"""What the tests of kiln-serve share: the fake runtime, compiled once for each layout."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.fake_runtime import build_runtime


@pytest.fixture(scope="session")
def runtime_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of the fake librkllmrt of a layout."""
    folder = tmp_path_factory.mktemp("fake_runtime")
    return lambda layout: build_runtime(folder, layout)


@pytest.fixture
def free_port_taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
