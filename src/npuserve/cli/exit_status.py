"""How a serve command ends: its errors as one line, its status as a number."""

import sys
from collections.abc import Callable

from npuserve.errors import ConfigError, NpuserveError

INTERRUPTED = 130


def exit_status(command: str, body: Callable[[], int | None]) -> int:
    """What `body` returns, None being 0; else 1 for what failed, 2 for a wrong option, 130 for an interrupt.

    What went wrong is told on standard error.
    """
    try:
        return body() or 0
    except ConfigError as error:
        tell(command, f"error: {error}")
        return 2
    except NpuserveError as error:
        tell(command, f"error: {error}")
        return 1
    except KeyboardInterrupt:
        tell(command, "interrupted")
        return INTERRUPTED


def tell(command: str, text: str) -> None:
    """One line on standard error, under the command's name."""
    print(f"{command}: {text}", file=sys.stderr, flush=True)
