"""fp4 weights (WF 2): E2M1 codes under the two scales of `two_level.py`.

The integers of the codes are twice E2M1's values, so a block scale is half of what it would be for those.
"""

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import e2m1, two_level

# Headroom: a largest magnitude may also fall on 8, where that serves the others better. Least error on normal weights.
GRID = two_level.Grid(
    -e2m1.LARGEST, e2m1.LARGEST, headroom=13, rounded=e2m1.rounded, codes=e2m1.codes, integers=e2m1.VALUES
)


def pack(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Rows uint8 [N, ceil(KB/2) * 128] and scale words uint32 [N, KB] of float32 [N, K]; see `two_level.pack`."""
    return two_level.pack(weights, GRID)


def unpack(rows: NDArray[np.uint8], scales: NDArray[np.uint32], num_columns: int | None = None) -> NDArray[np.float32]:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    return two_level.unpack(rows, scales, GRID, num_columns)
