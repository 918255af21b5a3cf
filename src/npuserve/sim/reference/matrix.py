"""The matrix unit: MM. What the weight formats differ in is in `weights.py`."""

import numpy as np

from npuserve.sim.arithmetic import Words, add, matrix_sum, mul, order_key
from npuserve.sim.reference.state import Indices, Operands, State
from npuserve.sim.reference.weights import INT8, NVFP4, block_products, row_scales

CHUNK_FIFO = 1024
"""Chunks that a row may have when it is streamed more than once."""


def matrix_multiply(state: State, operands: Operands) -> None:
    """T[out + j*ors + n] = sum over the blocks k of dot(ACT[j][ab+k], row n block k) * row scale * ACT scale.

    All of weights, scales, old results and row factors are read before anything is written.
    """
    _check(state, operands)
    m, n = operands["m"], operands["n"]
    target = state.tmem_grid(operands["out"], m, operands["ors"], n)
    y = matrix_sum(_terms(state, operands))
    if operands["wf"] == NVFP4:
        y = mul(y, row_scales(state, operands))
    if operands["ascale"]:
        factors = state.tmem[state.tmem_grid(operands["ssa"], m, 1)]
        y = add(mul(state.tmem[target], factors), y)
    elif operands["acc"]:
        y = add(state.tmem[target], y)
    state.write_tmem(target, y)
    if operands["rmax"]:
        state.write_tmem(state.tmem_grid(operands["out"] + m * operands["ors"], m, 1), row_maximum(y)[0])


def _check(state: State, operands: Operands) -> None:
    config = state.config
    m, kb, ab = operands["m"], operands["kb"], operands["ab"]
    state.require_range("m", m, config.act_rows)
    state.require(operands["n"] > 0, "n is 0")
    state.require(kb > 0, "kb is 0")
    state.require(ab + kb <= config.act_blocks, f"blocks {ab}..{ab + kb - 1} of {config.act_blocks} ACT blocks")
    for name in ("sa", "rs"):
        state.require(operands[name] % config.depth == 0, f"{name} {operands[name]:#x} is no multiple of D")
    if operands["rmax"] or operands["ascale"]:
        state.require(m <= config.mcols, f"RMAX and ASCALE take {config.mcols} rows, not {m}")
    if operands["ascale"]:
        state.require(bool(operands["unit"] and operands["acc"]), "ASCALE needs UNIT and ACC")
    chunks = kb if operands["wf"] == INT8 else -(-kb // 2)
    state.require(m <= config.mcols or chunks <= CHUNK_FIFO, f"a row of {chunks} chunks streamed more than once")
    if operands["pair"]:
        state.require(operands["wf"] != INT8, "PAIR needs a 4-bit weight format")
        most = min(config.mcols, config.act_rows) // 2
        state.require(m <= most, f"PAIR takes {most} rows, not {m}")
    if not operands["unit"] and (operands["pair"] or operands["wf"] == NVFP4):
        for name in ("ssa", "srs"):
            state.require(operands[name] % 8 == 0, f"{name} {operands[name]:#x} is no multiple of 8")


def _terms(state: State, operands: Operands) -> Words:
    """What isum_4 adds up, fp32 bits [m, n, blocks]; with PAIR a term is that of an even block plus the next one's."""
    m = operands["m"]
    if not operands["pair"]:
        return _scaled(state, operands, m)
    both = _scaled(state, operands, 2 * m)
    even, odd = both[:m, :, 0::2], both[m:, :, 1::2]
    missing = np.zeros((m, operands["n"], even.shape[2] - odd.shape[2]), np.uint32)
    return add(even, np.concatenate([odd, missing], axis=2))


def _scaled(state: State, operands: Operands, rows: int) -> Words:
    """Block products times the activations' scales, fp32 bits [rows, n, kb]."""
    blocks = slice(operands["ab"], operands["ab"] + operands["kb"])
    return mul(block_products(state, operands, rows), state.act_scales[:rows, None, blocks])


def row_maximum(values: Words) -> tuple[Words, Indices]:
    """The largest of each row of flushed values in the total order, and its first column."""
    column = np.argmax(order_key(values), axis=1)
    return np.take_along_axis(values, column[:, None], axis=1)[:, 0], column
