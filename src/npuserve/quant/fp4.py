"""fp4 weights (WF 2): E2M1 codes under the two scales of `two_level.py`.

The integers of the codes are twice E2M1's values, so a block scale is half of what it would be for those.

MXFP4 is the same where the exponents of a block's four sub-blocks span at most 3: their scales are then the block's
times 1, 2, 4 or 8, which are multipliers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import e2m1, two_level
from npuserve.quant.four_bit_rows import E8M0_BIAS, E8M0_LARGEST, FourBitRows, TakenOver
from npuserve.quant.int8 import BLOCK, num_blocks
from npuserve.quant.two_level import SUB_BLOCKS

# Headroom: a largest magnitude may also fall on 8, where that serves the others better. Least error on normal weights.
GRID = two_level.Grid(
    -e2m1.LARGEST, e2m1.LARGEST, headroom=13, rounded=e2m1.rounded, codes=e2m1.codes, integers=e2m1.VALUES
)

_MOST_SPAN = 3
# Half of 2^(exponent - bias) is a normal fp32, with room for a factor.
_LEAST_EXPONENT = 32


def pack(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Rows uint8 [N, ceil(KB/2) * 128] and scale words uint32 [N, KB] of float32 [N, K]; see `two_level.pack`."""
    return two_level.pack(weights, GRID)


def unpack(rows: NDArray[np.uint8], scales: NDArray[np.uint32], num_columns: int | None = None) -> NDArray[np.float32]:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    return two_level.unpack(rows, scales, GRID, num_columns)


def take_over(given: FourBitRows) -> TakenOver:
    """MXFP4 rows in this format. Exact but for blocks whose exponents span more than 3, which are packed anew, and for
    row scales whose product with a power of two bf16 does not hold, which is rounded."""
    num_rows, blocks = len(given), num_blocks(given.num_columns)
    used, exponents = _by_block(given.nonzero_blocks()), _by_block(given.scales).astype(np.int32)
    lowest, spread = _reach(used, exponents)
    exact = np.where(used.any(axis=2), np.ldexp(given.row_scales[:, None], lowest - E8M0_BIAS - 1), np.float32(0))
    block_scales = two_level.to_bfloat16(exact)
    words = block_scales.view(np.uint32) >> np.uint32(16)
    powers = np.where(used, exponents - lowest[..., None], 0).clip(0, _MOST_SPAN)
    for part in range(SUB_BLOCKS):
        words |= (np.uint32(1) << powers[..., part].astype(np.uint32)) << np.uint32(16 + 4 * part)
    rows = np.zeros((num_rows, two_level.row_bytes(blocks)), np.uint8)
    rows[:, : given.codes.shape[1]] = given.codes
    rounded = spread | (block_scales != exact)
    if spread.any():
        _pack_anew(given, rows, words, spread)
    return TakenOver(rows, words, int(rounded.sum()))


def rows_with_spread(scales: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Which rows of MXFP4 scales [N, K/32] have a block that is not exact here, unless part of it is zeros."""
    ragged = np.pad(scales, ((0, 0), (0, -scales.shape[1] % SUB_BLOCKS)), mode="edge")
    parts = [ragged[:, part::SUB_BLOCKS] for part in range(SUB_BLOCKS)]
    lowest = np.minimum(np.minimum(*parts[:2]), np.minimum(*parts[2:]))
    highest = np.maximum(np.maximum(*parts[:2]), np.maximum(*parts[2:]))
    return np.flatnonzero(((highest - lowest > _MOST_SPAN) | (lowest < _LEAST_EXPONENT)).any(axis=1))


def is_exact(given: FourBitRows) -> bool:
    """Whether `take_over` keeps these rows bit by bit, apart from their row scales."""
    used, exponents = _by_block(given.nonzero_blocks()), _by_block(given.scales).astype(np.int32)
    return not _reach(used, exponents)[1].any()


def _reach(used: NDArray[np.bool_], exponents: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The lowest exponent [N, KB] of the sub-blocks in use, and whether those of a block do not go together."""
    highest = np.where(used, exponents, 0).max(axis=2)
    lowest = np.where(used, exponents, E8M0_LARGEST).min(axis=2)
    return lowest, (highest > lowest + _MOST_SPAN) | (lowest < _LEAST_EXPONENT)


def _by_block(values: NDArray[Any]) -> NDArray[Any]:
    """[N, K/32] as [N, KB, 4], zeros behind the last."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % SUB_BLOCKS)))
    return padded.reshape(len(values), -1, SUB_BLOCKS)


def _pack_anew(
    given: FourBitRows, rows: NDArray[np.uint8], words: NDArray[np.uint32], chosen: NDArray[np.bool_]
) -> None:
    """Quantize the chosen blocks [N, KB] of the given rows in place."""
    for row in np.flatnonzero(chosen.any(axis=1)):
        places = chosen[row]
        one = FourBitRows(
            given.kind, given.codes[row : row + 1], given.scales[row : row + 1], given.row_scales[row:][:1]
        )
        values = np.zeros((len(places), BLOCK), np.float32)
        values.ravel()[: given.num_columns] = one.dequantized()[0]
        codes, scales = pack(values[places])
        rows[row, : len(places) * BLOCK // 2].reshape(len(places), -1)[places] = codes[:, : BLOCK // 2]
        words[row, places] = scales[:, 0]
