"""What MM streams: weights as integers and their scales, one function for each format of field `wf`.

0 int8    i2f(dot) * fp32 scale of the block
1 int4    i2f(sum over four sub-blocks of multiplier * dot) * bf16 scale of the block
2 fp4     the same over E2M1 codes as integers
3 nvfp4   sum over eight sub-blocks of i2f(dot) * E4M3 scale, rounded one after the other; the row's fp32 scale
          multiplies the finished sum (an extension of ours)
"""

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import e2m1, e4m3, int4, nibbles
from npuserve.sim.arithmetic import ONE, Words, add, bits_of, i2f, mul
from npuserve.sim.reference.state import Operands, State

INT8, INT4, FP4, NVFP4 = range(4)
INTEGERS = {INT4: int4.CODES, FP4: e2m1.VALUES, NVFP4: e2m1.VALUES}
"""What the codes 0..15 of a format stand for."""
TWO_LEVEL_SUB_BLOCKS = 4
NVFP4_SUB_BLOCKS = 8


def block_products(state: State, operands: Operands, rows: int) -> Words:
    """Scaled dot products of the ACT rows 0..rows-1 with each block, fp32 bits [rows, n, kb]."""
    match operands["wf"]:
        case 0:
            return mul(i2f(_dots(state, operands, rows, 1)[..., 0]), _block_scales(state, operands))
        case 3:
            return _nvfp4_products(state, operands, rows)
        case _:
            dots = _dots(state, operands, rows, TWO_LEVEL_SUB_BLOCKS)
            if operands["unit"]:
                return i2f(dots.sum(axis=-1))
            words = _block_scales(state, operands)
            multipliers = words[..., None] >> np.arange(16, 32, 4, dtype=np.uint32) & np.uint32(15)
            # Below 2^22 at D = 128, so exact.
            return mul(i2f((dots * multipliers.astype(np.int32)).sum(axis=-1)), words << np.uint32(16))


def row_scales(state: State, operands: Operands) -> Words:
    """nvfp4: the fp32 words [n] behind the scales of the rows' blocks."""
    if operands["unit"]:
        return np.full(operands["n"], ONE)
    behind = operands["ssa"] + NVFP4_SUB_BLOCKS * operands["kb"]
    return state.read_words(state.dram_grid(behind, operands["n"], operands["srs"]))[:, 0]


def _nvfp4_products(state: State, operands: Operands, rows: int) -> Words:
    n, kb = operands["n"], operands["kb"]
    dots = i2f(_dots(state, operands, rows, NVFP4_SUB_BLOCKS))
    if operands["unit"]:
        scales = np.full((n, kb, NVFP4_SUB_BLOCKS), ONE)
    else:
        places = state.dram_grid(operands["ssa"], n, operands["srs"], NVFP4_SUB_BLOCKS * kb)
        scales = bits_of(e4m3.VALUES[state.dram[places]]).reshape(n, kb, NVFP4_SUB_BLOCKS)
    terms = mul(dots, scales)
    total = terms[..., 0]
    for index in range(1, NVFP4_SUB_BLOCKS):
        total = add(total, terms[..., index])
    return total


def _dots(state: State, operands: Operands, rows: int, sub_blocks: int) -> NDArray[np.int32]:
    """Exact dot products of the parts of blocks, int32 [rows, n, kb, sub_blocks]."""
    kb = operands["kb"]
    blocks = slice(operands["ab"], operands["ab"] + kb)
    # Products summed over one block stay below 2^24, so float64 holds them exactly and is fast.
    left = state.act[:rows, blocks].astype(np.float64).reshape(rows, kb * sub_blocks, -1)
    right = _weights(state, operands).astype(np.float64).reshape(operands["n"], kb * sub_blocks, -1)
    products = left.transpose(1, 0, 2) @ right.transpose(1, 2, 0)
    return products.transpose(1, 2, 0).astype(np.int32).reshape(rows, operands["n"], kb, sub_blocks)


def _weights(state: State, operands: Operands) -> NDArray[np.int8]:
    """The integers of the streamed rows, int8 [n, kb * D]; rows are read in whole chunks of D bytes."""
    kb, depth, wf = operands["kb"], state.config.depth, operands["wf"]
    chunks = kb if wf == INT8 else -(-kb // 2)
    rows = state.dram[state.dram_grid(operands["sa"], operands["n"], operands["rs"], chunks * depth)]
    if wf == INT8:
        return rows.view(np.int8)
    return INTEGERS[wf][nibbles.split(rows)][:, : kb * depth]


def _block_scales(state: State, operands: Operands) -> Words:
    """The scale words [n, kb]; 1.0 with UNIT."""
    if operands["unit"]:
        return np.full((operands["n"], operands["kb"]), ONE)
    return state.read_words(state.dram_grid(operands["ssa"], operands["n"], operands["srs"], operands["kb"], 4))
