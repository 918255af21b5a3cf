"""The 4-bit float E2M1 as integers of twice its value: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives."""

import numpy as np
from numpy.typing import NDArray

LARGEST = 12
VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""By code: the magnitude's table in the low three bits, the sign above."""
_EXPONENT = np.uint32(0x7F80_0000)
_TO_INTEGERS = np.float32(1.5 * 2**23)
_HALF = np.float32(0.5)
_CODES = np.array([int(np.flatnonzero(value == VALUES)[0]) if value in VALUES else 0 for value in range(-12, 13)], "u1")


def rounded(values: NDArray[np.float32], scratch: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Nearest representable integers of values within +-12, ties to the even code; three arrays of one shape.

    Representable values are 1 apart below 4, else half the power of two below. Adding 1.5 * 2^23 of these steps
    leaves no room for anything finer.
    """
    np.bitwise_and(values.view(np.uint32), _EXPONENT, out=scratch.view(np.uint32))
    np.maximum(scratch, np.float32(2), out=scratch)
    np.multiply(scratch, _HALF * _TO_INTEGERS, out=scratch)
    np.add(values, scratch, out=out)
    np.subtract(out, scratch, out=out)


def codes(integers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes 0..15 of representable integers; -0 is 0."""
    found: NDArray[np.uint8] = _CODES[integers.astype(np.int8) + np.int8(LARGEST)]
    return found
