"""What ends a command is one line on standard error and a status, whoever raised it."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from npuserve.cli.exit_status import exit_status
from npuserve.errors import CheckpointError, ConfigError


def raising(error: BaseException) -> Callable[[], int | None]:
    def body() -> int | None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ConfigError("wrong option"), 2, "error: wrong option"),
        (CheckpointError("damaged"), 1, "error: damaged"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("std::bad_alloc"), 1, "error: there is not enough memory; use"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "error: Too many open files"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 9), 1, "error: xxxxxxxxx: File name too long"),
    ],
)
def test_failure_is_one_line_and_a_status(
    error: BaseException, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("command", raising(error)) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"command: {told}")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "| true"])
@pytest.mark.parametrize("command", ["otpu_pull --list", "otpu_serve --help"])
def test_output_that_nobody_takes_is_no_traceback(command: str, redirection: str) -> None:
    if redirection == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    shell = f'"{sys.executable}" -W ignore -m npuserve.cli.{command} {redirection}'
    ended = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in ended.stderr
