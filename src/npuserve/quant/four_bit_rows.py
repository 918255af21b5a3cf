"""Rows of a matrix as 4-bit checkpoints have them: E2M1 codes under a scale for each block of neighbours.

    value = E2M1 value of the code * scale of its block * scale of the row

NVFP4 has blocks of 16 with E4M3 scales under an fp32 scale for the whole tensor (NVIDIA's Transformer Engine and
Model Optimizer); MXFP4 has blocks of 32 with E8M0 scales, which are 2^(code - 127), and nothing above (OCP Microscaling
Formats v1.0).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import e2m1, e4m3, nibbles

Floats = NDArray[np.float32]
E8M0_BIAS = 127
E8M0_LARGEST = 252
"""Above it 6 * 2^(code - 127) leaves fp32; 255 is NaN."""
TENSOR_SCALES = 2.0**-100, 2.0**100
"""Magnitudes between which the scale of a tensor has to lie, so that nothing under- or overflows."""
_VALUES = (e2m1.VALUES / 2).astype(np.float32)


class FourBitKind(Enum):
    """A kind by its public name, with the elements under one scale."""

    NVFP4 = 16
    MXFP4 = 32

    @property
    def block_size(self) -> int:
        return int(self.value)


@dataclass(frozen=True, slots=True)
class FourBitRows:
    """`codes` uint8 [N, K/2] have element i in byte i/2, low half first; `scales` uint8 [N, K / block size] are E4M3 or
    E8M0 by `kind`; `row_scales` are float32 [N], where a factor of whole rows belongs. K is whole blocks."""

    kind: FourBitKind
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    row_scales: Floats

    def __len__(self) -> int:
        return int(self.codes.shape[0])

    @property
    def num_columns(self) -> int:
        return 2 * int(self.codes.shape[1])

    def __getitem__(self, places: slice | NDArray[np.intp]) -> "FourBitRows":
        return FourBitRows(self.kind, self.codes[places], self.scales[places], self.row_scales[places])

    def nonzero_blocks(self) -> NDArray[np.bool_]:
        """[N, K / block size]: whether a block has a number other than 0; the scale of one that has none is free."""
        pairs = self.codes.reshape(len(self), -1, self.kind.block_size // 2) & np.uint8(0x77)
        found: NDArray[np.bool_] = pairs.max(axis=2, initial=0) != 0
        return found

    def block_steps(self) -> Floats:
        """The blocks' scales as float32, exact."""
        if self.kind is FourBitKind.NVFP4:
            return e4m3.VALUES[self.scales]
        return np.ldexp(np.float32(1), self.scales.astype(np.int32) - E8M0_BIAS)

    def dequantized(self) -> Floats:
        """float32 [N, K]; exact but for the product with the row's scale."""
        values = _VALUES[nibbles.split(self.codes)].reshape(len(self), -1, self.kind.block_size)
        values *= self.block_steps()[..., None]
        flat: Floats = values.reshape(len(self), -1)
        flat *= self.row_scales[:, None]
        return flat


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Rows in one of our formats, as its `pack` returns them, and how many blocks could not be kept as they were."""

    rows: NDArray[Any]
    scales: NDArray[Any]
    num_rounded: int = 0


def scales_are_finite(kind: FourBitKind, scales: NDArray[np.uint8]) -> bool:
    """Whether no scale is NaN or makes numbers that fp32 does not have."""
    if kind is FourBitKind.NVFP4:
        return not bool(((scales & np.uint8(0x7F)) == e4m3.LARGEST_CODE + 1).any())
    return not bool((scales > E8M0_LARGEST).any())


def is_tensor_scale(scale: float) -> bool:
    """Whether it is 0 or of a magnitude that weights can have; NaN is not."""
    return scale == 0 or TENSOR_SCALES[0] <= abs(scale) <= TENSOR_SCALES[1]
