"""How a command ends: its errors as one line, its status as a number."""

import contextlib
import os
import sys
from collections.abc import Callable

from npuserve.errors import ConfigError, NpuserveError

INTERRUPTED = 130


def exit_status(command: str, body: Callable[[], int | None]) -> int:
    """What `body` returns, None being 0; else 1 for what failed, 2 for a wrong option, 130 for an interrupt.

    What went wrong is told on standard error.
    """
    try:
        status = body() or 0
        print(end="", flush=True)  # there may be no sys.stdout to flush
        return status
    except ConfigError as error:
        tell(command, f"error: {error}")
        return 2
    except NpuserveError as error:
        tell(command, f"error: {error}")
        return 1
    except KeyboardInterrupt:
        tell(command, "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        drop_output()
        return 1
    except OSError as error:
        drop_output()
        where = f"{error.filename}: " if error.filename else ""
        tell(command, f"error: {where}{error.strerror or error}")
        return 1
    except MemoryError:
        tell(
            command,
            "error: there is not enough memory; use a smaller model, a smaller --cap or fewer --slots",
        )
        return 1


def drop_output() -> None:
    """Give up standard output, so that what could not be written is not tried again at the end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


def tell(command: str, text: str) -> None:
    """One line on standard error, under the command's name."""
    print(f"{command}: {text}", file=sys.stderr, flush=True)
