"""What the tests of kiln-serve share: the fake runtime, compiled once for each layout."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.fake_runtime import build_runtime


@pytest.fixture(scope="session")
def runtime_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of the fake librkllmrt of a layout."""
    folder = tmp_path_factory.mktemp("fake_runtime")
    return lambda layout: build_runtime(folder, layout)
