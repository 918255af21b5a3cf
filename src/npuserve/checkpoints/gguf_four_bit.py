"""How GGUF files store 4-bit floats.

    MXFP4   blocks of 32: the E8M0 scale, 16 bytes; byte i has element i in its low half, element i + 16 in its high one
    NVFP4   blocks of 64: four E4M3 scales without sign, then for each 16 elements 8 bytes, in the same way; a tensor
            `x.weight` is multiplied with the one number of `x.scale` where there is such a tensor

ggml's tables have twice E2M1's values under half of the scale, which is the same. Source: the ggml project's types 39
and 40 as its gguf package unpacks them.
"""

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import nibbles
from npuserve.quant.four_bit_rows import FourBitKind

KINDS = {kind.name: kind for kind in FourBitKind}
"""By the name of the file's type."""
BESIDE = ("scale", "input_scale")
"""Ends of names of tensors that belong to one of NVFP4; scales of activations are of no use here."""
_SCALES = {FourBitKind.MXFP4: 1, FourBitKind.NVFP4: 4}
"""In front of a block."""


def scales(rows: NDArray[np.uint8], kind: FourBitKind) -> NDArray[np.uint8]:
    """Block scales [N, K / block size] of stored rows [N, bytes]."""
    found: NDArray[np.uint8] = _blocks(rows, kind)[..., : _SCALES[kind]].reshape(len(rows), -1)
    return found


def codes(rows: NDArray[np.uint8], kind: FourBitKind) -> NDArray[np.uint8]:
    """Codes [N, K/2] of stored rows, neighbours in one byte, the first in the low half."""
    halves = _blocks(rows, kind)[..., _SCALES[kind] :].reshape(len(rows), -1, kind.block_size // 2)
    elements = np.concatenate([halves & np.uint8(15), halves >> np.uint8(4)], axis=-1)
    return nibbles.join(elements).reshape(len(rows), -1)


def _blocks(rows: NDArray[np.uint8], kind: FourBitKind) -> NDArray[np.uint8]:
    size = _SCALES[kind] * (1 + kind.block_size // 2)
    return rows.reshape(len(rows), -1, size)
