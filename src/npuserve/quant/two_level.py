"""4-bit weights under two levels of scale: a bf16 scale per block of 128, an unsigned 4-bit multiplier per 32.

    value = integer of the code * multiplier * block scale        4.25 bits a weight

A row is the blocks' codes, 64 bytes each, two blocks to a chunk of 128 bytes; an odd block leaves half a chunk of
zeros. The scale word of a block is bf16 in bits 15:0 and the multipliers of its four sub-blocks in bits 31:16, from the
lowest. Source: the public openTPU weight formats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import nibbles
from npuserve.quant.int8 import BLOCK, num_blocks

SUB_BLOCK = 32
SUB_BLOCKS = BLOCK // SUB_BLOCK
MOST = 15
"""The largest multiplier; a block's largest magnitude is first laid on `headroom` of these."""
CHUNK = 128
_ELEMENTS_AT_ONCE = 1 << 15
"""What is searched at once with its scratch stays in a core's cache."""

Floats = NDArray[np.float32]
Rounding = Callable[[Floats, Floats, Floats], None]
"""Round within the range: values, scratch, out."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The integers that a code can stand for. `integers` are by code; `headroom` is the multiplier at which the
    largest magnitude of a block is `highest`."""

    lowest: int
    highest: int
    headroom: int
    rounded: Rounding
    codes: Callable[[Floats], NDArray[np.uint8]]
    integers: NDArray[np.int8]


def row_bytes(blocks: int) -> int:
    """Bytes of a row of codes: whole chunks."""
    return -(-blocks // 2) * CHUNK


def pack(weights: Floats, grid: Grid) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Rows [N, row_bytes] and scale words [N, KB] of [N, K]: per sub-block the multiplier 1..15 whose squared error is
    least, a block of zeros scale 0. K is padded with zeros to whole blocks. Values must be finite."""
    num_rows, columns = weights.shape
    blocks = num_blocks(columns)
    rows = np.zeros((num_rows, row_bytes(blocks)), np.uint8)
    scales = np.zeros((num_rows, blocks), np.uint32)
    step = max(1, _ELEMENTS_AT_ONCE // (blocks * BLOCK))
    for start in range(0, num_rows, step):
        part = weights[start : start + step]
        padded = np.zeros((len(part), blocks * BLOCK), np.float32)
        padded[:, :columns] = part
        codes, words = _pack_blocks(padded.reshape(-1, BLOCK), grid)
        rows[start : start + step, : blocks * BLOCK // 2] = nibbles.join(codes).reshape(len(part), -1)
        scales[start : start + step] = words.reshape(len(part), -1)
    return rows, scales


def unpack(
    rows: NDArray[np.uint8], scales: NDArray[np.uint32], grid: Grid, num_columns: int | None = None
) -> NDArray[np.float32]:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    num_rows, blocks = scales.shape
    integers = grid.integers[nibbles.split(rows[:, : blocks * BLOCK // 2])].astype(np.float32)
    steps = (multipliers(scales) * block_scales(scales)[..., None]).reshape(num_rows, -1, 1)
    values: Floats = (integers.reshape(num_rows, -1, SUB_BLOCK) * steps).reshape(num_rows, -1)
    return values[:, :num_columns]


def block_scales(words: NDArray[np.uint32]) -> Floats:
    """The bf16 part of scale words, float32 of the same shape."""
    return (words << np.uint32(16)).view(np.float32)


def multipliers(words: NDArray[np.uint32]) -> Floats:
    """The multipliers of scale words [...], float32 [..., 4]."""
    shifts = np.arange(16, 32, 4, dtype=np.uint32)
    return (words[..., None] >> shifts & np.uint32(MOST)).astype(np.float32)


def to_bfloat16(values: Floats) -> Floats:
    """Nearest bf16, ties to even, as float32; what the machine would flush to zero is zero."""
    words = values.view(np.uint32)
    rounded = words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF_0000)
    return np.where(rounded >= np.uint32(0x0080_0000), rounded, np.uint32(0)).astype(np.uint32).view(np.float32)


def _pack_blocks(values: Floats, grid: Grid) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Codes [B, 128] and words [B] of blocks [B, 128]."""
    scales = to_bfloat16(np.abs(values).max(axis=1) * np.float32(1 / (grid.highest * grid.headroom)))
    # Sub-blocks along the last axis: everything below then works on long vectors.
    columns = np.ascontiguousarray(values.reshape(-1, SUB_BLOCK).T)
    chosen = _best_multipliers(columns, np.repeat(scales, SUB_BLOCKS), grid)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.nan_to_num(columns / (chosen * np.repeat(scales, SUB_BLOCKS)), nan=0.0)
    integers = np.empty_like(scaled)
    grid.rounded(np.clip(scaled, grid.lowest, grid.highest), np.empty_like(scaled), integers)
    words = scales.view(np.uint32) >> np.uint32(16)
    for b, part in enumerate(chosen.reshape(-1, SUB_BLOCKS).T):
        words |= part.astype(np.uint32) << np.uint32(16 + 4 * b)
    return grid.codes(integers.T).reshape(-1, BLOCK), words


def _best_multipliers(columns: Floats, scales: Floats, grid: Grid) -> Floats:
    """For sub-blocks [32, S] with block scales [S] the multiplier 1..15 of least squared error."""
    least = np.full(scales.shape, np.inf, np.float32)
    best = np.ones(scales.shape, np.float32)
    scaled, clipped, scratch, error = (np.empty_like(columns) for _ in range(4))
    safe = np.where(scales == 0, np.float32(1), scales)
    for multiplier in range(1, MOST + 1):
        inverse = np.float32(1) / (safe * np.float32(multiplier))
        np.multiply(columns, inverse, out=scaled)
        np.clip(scaled, np.float32(grid.lowest), np.float32(grid.highest), out=clipped)
        grid.rounded(clipped, scratch, error)
        np.subtract(scaled, error, out=error)
        np.square(error, out=error)
        # Relative to the block scale, so that no square leaves the range of float32.
        errors = error.sum(axis=0) * np.float32(multiplier**2)
        better = errors < least
        np.copyto(least, errors, where=better)
        np.copyto(best, np.float32(multiplier), where=better)
    return best
