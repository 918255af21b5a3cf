"""int8 weights: row-major bytes in blocks of 128 along K, one fp32 scale per row and block (8.25 bits a weight)."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 128
_INVERSE_127 = np.float32(1.0 / 127.0)


def num_blocks(num_columns: int) -> int:
    """Blocks that hold `num_columns` elements; the last one is padded with zeros."""
    return -(-num_columns // BLOCK)


def pack(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize [N, K] to int8 [N, KB * 128] and scales [N, KB]: scale = amax * f32(1/127), nearest even.

    A block of zeros gets scale 0. K is padded with zeros to whole blocks. Values must be finite.
    """
    num_rows, num_columns = weights.shape
    blocks = num_blocks(num_columns)
    padded = np.zeros((num_rows, blocks * BLOCK), np.float32)
    padded[:, :num_columns] = weights
    grouped = padded.reshape(num_rows, blocks, BLOCK)
    scales = np.max(np.abs(grouped), axis=2) * _INVERSE_127
    safe = np.where(scales == 0, np.float32(1), scales)
    quantized = np.clip(np.rint(grouped / safe[:, :, None]), -127, 127).astype(np.int8)
    return quantized.reshape(num_rows, blocks * BLOCK), scales


def unpack(
    quantized: NDArray[np.int8], scales: NDArray[np.float32], num_columns: int | None = None
) -> NDArray[np.float32]:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    num_rows, blocks = scales.shape
    grouped = quantized.reshape(num_rows, blocks, BLOCK).astype(np.float32) * scales[:, :, None]
    return grouped.reshape(num_rows, blocks * BLOCK)[:, :num_columns]
