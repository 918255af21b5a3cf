"""The embedding as the host keeps it: the narrowest of three types that loses nothing."""

import numpy as np
from numpy.typing import NDArray

EXACT_CANDIDATES = (np.dtype("<f2"), np.dtype("<u2"))
"""float16, and bfloat16 as the upper halves of float32 bits."""
FALLBACK = np.dtype("<f4")


def narrow(rows: NDArray[np.float32], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """float32 rows in one of the three types; what does not fit is rounded or cut."""
    if dtype == np.uint16:
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return rows.astype(dtype)


def widen(rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """The float32 values of narrowed rows."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)


def holds(rows: NDArray[np.float32], dtype: np.dtype[np.generic]) -> bool:
    """Whether narrowing loses nothing of these rows."""
    return bool(np.array_equal(widen(narrow(rows, dtype)), rows))
