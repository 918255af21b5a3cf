"""How long a test waits for what must come: a limit for what never will, never a measure of how fast it came."""

import time
from collections.abc import Callable

# However loaded the machine: what has not come by then never will.
WAIT_S = 120


def wait_until(is_so: Callable[[], bool]) -> None:
    """Poll for what no event tells."""
    give_up_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < give_up_s, "it never happened"
        time.sleep(0.001)
