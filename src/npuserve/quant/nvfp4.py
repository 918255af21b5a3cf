"""nvfp4 weights (WF 3, an extension of ours): E2M1 codes in sub-blocks of 16 with E4M3 scales, and a scale per row.

    value = integer of the code * E4M3 scale * row scale        4.5 bits a weight and 8 bytes a row

A row of codes is laid out as in `two_level.py`. A row of scales is two words per block of 128, whose bytes from the
lowest are the scales of its eight sub-blocks, then the row scale as fp32, then a word of zeros that keeps rows on
multiples of 8. The row scale is half of the format's scale per tensor, as E2M1's integers are twice its values; that it
stands in every row lets tensors with different scales lie in one matrix.
"""

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import e2m1, e4m3, nibbles
from npuserve.quant.four_bit_rows import E8M0_BIAS, FourBitKind, FourBitRows, TakenOver
from npuserve.quant.int8 import BLOCK, num_blocks
from npuserve.quant.two_level import row_bytes

SUB_BLOCK = 16
SUB_BLOCKS = BLOCK // SUB_BLOCK
WORDS_PER_BLOCK = 2
_ELEMENTS_AT_ONCE = 1 << 15
# Scales tried around the one that puts the largest magnitude on 6: codes below, and above as far as it falls on 4.
_OFFSETS = range(-2, 5)
# Powers of two that E4M3 has; the lowest three are subnormal.
_HIGHEST_POWER, _LOWEST_POWER = 8, -9
_POWER_CODES = e4m3.codes(np.ldexp(np.float32(1), np.arange(_LOWEST_POWER, _HIGHEST_POWER + 1)))
# Half of 2^(exponent - bias) is a normal fp32, with room for a factor.
_LEAST_ROW_EXPONENT = 32

Floats = NDArray[np.float32]


def scale_words(blocks: int) -> int:
    """Words of a row of scales."""
    return WORDS_PER_BLOCK * blocks + 2


def pack(weights: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Rows uint8 [N, ceil(KB/2) * 128] and scales uint32 [N, 2 * KB + 2] of float32 [N, K].

    One tensor scale for all rows of the call, which lets the largest block scale be 448; per sub-block the E4M3 scale
    near the largest magnitude / 6 whose squared error is least. K is padded with zeros to whole blocks; values must be
    finite.
    """
    num_rows, columns = weights.shape
    blocks = num_blocks(columns)
    largest = np.float32(np.abs(weights).max(initial=0))
    row_scale = np.maximum(largest * np.float32(1 / (e4m3.LARGEST * e2m1.LARGEST)), np.finfo(np.float32).tiny)
    rows = np.zeros((num_rows, row_bytes(blocks)), np.uint8)
    scales = np.zeros((num_rows, scale_words(blocks)), np.uint32)
    scales[:, -2] = np.float32(row_scale).view(np.uint32)
    step = max(1, _ELEMENTS_AT_ONCE // (blocks * BLOCK))
    for start in range(0, num_rows, step):
        part = weights[start : start + step]
        padded = np.zeros((len(part), blocks * BLOCK), np.float32)
        padded[:, :columns] = part / row_scale
        codes, sub_scales = _pack_blocks(padded.reshape(-1, SUB_BLOCK))
        rows[start : start + step, : blocks * BLOCK // 2] = nibbles.join(codes).reshape(len(part), -1)
        scales[start : start + step, :-2] = sub_scales.reshape(len(part), -1).view(np.uint32)
    return rows, scales


def assemble(
    codes: NDArray[np.uint8], sub_scales: NDArray[np.uint8], tensor_scale: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """What `pack` returns, of a checkpoint that is in this format already; exact.

    `codes` are its bytes [N, K/2] with element i in byte i/2, low half first, `sub_scales` its E4M3 bytes [N, K/16];
    K is a multiple of 16. `tensor_scale` is what their product is multiplied by, one number or one per row.
    """
    num_rows = len(codes)
    blocks = num_blocks(2 * codes.shape[1])
    rows = np.zeros((num_rows, row_bytes(blocks)), np.uint8)
    rows[:, : codes.shape[1]] = codes
    padded = np.zeros((num_rows, blocks * SUB_BLOCKS), np.uint8)
    padded[:, : sub_scales.shape[1]] = sub_scales
    scales = np.zeros((num_rows, scale_words(blocks)), np.uint32)
    scales[:, :-2] = padded.view(np.uint32)
    scales[:, -2] = np.broadcast_to(tensor_scale * np.float32(0.5), num_rows).astype(np.float32).view(np.uint32)
    return rows, scales


def take_over(given: FourBitRows) -> TakenOver:
    """A checkpoint's rows in this format: NVFP4 as it is, MXFP4 with its powers of two as E4M3 codes under a power of
    two for the row.

    Exact but for MXFP4 blocks that lie more than 17 binades below the largest one of their row: those are rounded to
    multiples of the smallest step.
    """
    if given.kind is FourBitKind.NVFP4:
        return TakenOver(*assemble(given.codes, given.scales, given.row_scales))
    used = given.nonzero_blocks()
    exponents = given.scales.astype(np.int32)
    largest = np.where(used, exponents, 0).max(axis=1, initial=0)
    units = np.maximum(largest - _HIGHEST_POWER, _LEAST_ROW_EXPONENT)
    powers = exponents - units[:, None]
    lost = used & (powers < _LOWEST_POWER)
    codes = given.codes
    if lost.any():
        blocks = codes.reshape(len(codes), used.shape[1], -1).copy()
        blocks[lost] = _lowered(blocks[lost], powers[lost] - _LOWEST_POWER)
        codes = blocks.reshape(codes.shape)
    sub_scales = _POWER_CODES[np.clip(powers, _LOWEST_POWER, _HIGHEST_POWER) - _LOWEST_POWER]
    sub_scales = np.where(used, sub_scales, np.uint8(0)).repeat(given.kind.block_size // SUB_BLOCK, axis=1)
    rows, scales = assemble(codes, sub_scales, np.ldexp(given.row_scales, units - E8M0_BIAS))
    return TakenOver(rows, scales, int(lost.sum()))


def unpack(rows: NDArray[np.uint8], scales: NDArray[np.uint32], num_columns: int | None = None) -> Floats:
    """The float32 [N, K] that packed weights stand for; `num_columns` cuts the padding off."""
    num_rows, blocks = len(scales), (scales.shape[1] - 2) // WORDS_PER_BLOCK
    integers = e2m1.VALUES[nibbles.split(rows[:, : blocks * BLOCK // 2])].astype(np.float32)
    steps = e4m3.VALUES[np.ascontiguousarray(scales[:, :-2]).view(np.uint8)]
    products: Floats = (integers.reshape(num_rows, -1, SUB_BLOCK) * steps[..., None]).reshape(num_rows, -1)
    values: Floats = products * np.ascontiguousarray(scales[:, -2:-1]).view(np.float32)
    return values[:, :num_columns]


def _lowered(blocks: NDArray[np.uint8], powers: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Bytes of codes [B, n] times 2^powers [B], which are below 0, rounded to codes."""
    integers = np.ldexp(e2m1.VALUES[nibbles.split(blocks)].astype(np.float32), powers[:, None])
    e2m1.rounded(integers.copy(), np.empty_like(integers), integers)
    return nibbles.join(e2m1.codes(integers))


def _pack_blocks(values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [S, 16] and E4M3 codes [S] of sub-blocks [S, 16] in units of the row scale."""
    columns = np.ascontiguousarray(values.T)
    nearest = e4m3.codes(np.abs(columns).max(axis=0) * np.float32(1 / e2m1.LARGEST)).astype(np.int16)
    least = np.full(nearest.shape, np.inf, np.float32)
    chosen = np.zeros(nearest.shape, np.uint8)
    for offset in _OFFSETS:
        codes = np.clip(nearest + offset, 1, e4m3.LARGEST_CODE).astype(np.uint8)
        steps = e4m3.VALUES[codes]
        scaled, integers = _rounded(columns, steps)
        errors = np.square(scaled - integers).sum(axis=0) * np.square(steps)
        better = errors < least
        np.copyto(least, errors, where=better)
        np.copyto(chosen, codes, where=better)
    chosen[nearest == 0] = 0
    steps = np.where(nearest == 0, np.float32(1), e4m3.VALUES[chosen])
    _, integers = _rounded(columns * (nearest != 0), steps)
    return e2m1.codes(integers.T), chosen


def _rounded(columns: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Values in steps, and their nearest representable integers."""
    scaled = columns * (np.float32(1) / steps)
    integers = np.empty_like(scaled)
    e2m1.rounded(np.clip(scaled, -e2m1.LARGEST, e2m1.LARGEST), np.empty_like(scaled), integers)
    return scaled, integers
