"""Two 4-bit codes a byte: element i is in byte i/2, in the low half when i is even."""

import numpy as np
from numpy.typing import NDArray


def join(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes 0..15 [..., n] to bytes [..., n/2]; n is even."""
    joined: NDArray[np.uint8] = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return joined


def split(joined: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes [..., n] to codes 0..15 [..., 2n]."""
    return np.stack([joined & np.uint8(15), joined >> np.uint8(4)], axis=-1).reshape(*joined.shape[:-1], -1)
