"""Memory given back."""

import re
from pathlib import Path

import numpy as np

from npuserve.drivers.heap import trim_heap


def resident_kb() -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def test_freed_blocks_leave_the_process() -> None:
    # Blocks below the size that the C library maps by itself, with every second one kept.
    blocks = [np.ones(60_000, dtype=np.uint8) for _ in range(2000)]
    keepers = blocks[::50]
    full = resident_kb()
    del blocks
    trim_heap()
    assert resident_kb() < full - 60_000
    assert all(block[0] == 1 for block in keepers)
