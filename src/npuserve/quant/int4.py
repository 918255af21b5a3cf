"""int4 weights (WF 1): two's complement codes -8..7 under the two scales of `two_level.py`."""

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import two_level

CODES = np.array([*range(8), *range(-8, 0)], np.int8)


def _rounded(values: NDArray[np.float32], _scratch: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    np.rint(values, out=out)


def _codes(integers: NDArray[np.float32]) -> NDArray[np.uint8]:
    return integers.astype(np.int8).view(np.uint8) & np.uint8(15)


GRID = two_level.Grid(-8, 7, headroom=15, rounded=_rounded, codes=_codes, integers=CODES)


def pack(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Rows uint8 [N, ceil(KB/2) * 128] and scale words uint32 [N, KB] of float32 [N, K]; see `two_level.pack`."""
    return two_level.pack(weights, GRID)


def unpack(rows: NDArray[np.uint8], scales: NDArray[np.uint32], num_columns: int | None = None) -> NDArray[np.float32]:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    return two_level.unpack(rows, scales, GRID, num_columns)
