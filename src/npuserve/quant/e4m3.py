"""The 8-bit float E4M3 of block scales: sign, four exponent bits with bias 7, three fraction bits; 448 is the largest,
0x7F is NaN and there is no infinity."""

import numpy as np
from numpy.typing import NDArray

LARGEST = 448.0
LARGEST_CODE = 0x7E


def _value(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    magnitude = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9
    return -magnitude if code & 0x80 else magnitude


VALUES = np.array([_value(code) for code in range(256)], np.float32)
"""By code."""
_MAGNITUDES = VALUES[: LARGEST_CODE + 1].astype(np.float64)
_MIDDLES = ((_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2).astype(np.float32)


def codes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of the nearest values of magnitudes >= 0, ties to the even code, saturating."""
    above = np.searchsorted(_MIDDLES, values, side="left")
    tie = (above < len(_MIDDLES)) & (_MIDDLES[np.minimum(above, len(_MIDDLES) - 1)] == values) & (above % 2 == 1)
    found: NDArray[np.uint8] = (above + tie).astype(np.uint8)
    return found
