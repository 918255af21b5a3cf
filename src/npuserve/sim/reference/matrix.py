"""The matrix unit: MM with int8 weights."""

import numpy as np

from npuserve.sim.arithmetic import ONE, Words, add, i2f, matrix_sum, mul, order_key
from npuserve.sim.reference.state import Indices, Operands, State


def matrix_multiply(state: State, operands: Operands) -> None:
    """T[out + j*ors + n] = sum over the blocks k of dot(ACT[j][ab+k], row n block k) * row scale * ACT scale.

    All of weights, scales, old results and row factors are read before anything is written.
    """
    _check(state, operands)
    m, n = operands["m"], operands["n"]
    target = state.tmem_grid(operands["out"], m, operands["ors"], n)
    y = matrix_sum(_terms(state, operands))
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
    state.require(operands["wf"] == 0, f"weight format {operands['wf']} is not in this configuration; 0 (int8) is")
    state.require(not operands["pair"], "PAIR is not in this configuration, and never with int8 weights")
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


def _terms(state: State, operands: Operands) -> Words:
    """Scaled block products, fp32 bits [m, n, kb]: (dot * weight scale) * activation scale."""
    m, n, kb = operands["m"], operands["n"], operands["kb"]
    blocks = slice(operands["ab"], operands["ab"] + kb)
    addresses = state.dram_grid(operands["sa"], n, operands["rs"], kb * state.config.depth)
    weights = state.dram[addresses].view(np.int8).reshape(n, kb, state.config.depth)
    # Products of int8 summed over one block stay below 2^24, so float64 holds them exactly and is fast.
    left = state.act[:m, blocks].astype(np.float64).transpose(1, 0, 2)
    right = weights.astype(np.float64).transpose(1, 2, 0)
    dots = i2f((left @ right).astype(np.int32)).transpose(1, 2, 0)
    scaled = mul(dots, _weight_scales(state, operands))
    return mul(scaled, state.act_scales[:m, None, blocks])


def _weight_scales(state: State, operands: Operands) -> Words:
    if operands["unit"]:
        return np.full((operands["n"], operands["kb"]), ONE)
    return state.read_words(state.dram_grid(operands["ssa"], operands["n"], operands["srs"], operands["kb"], 4))


def row_maximum(values: Words) -> tuple[Words, Indices]:
    """The largest of each row of flushed values in the total order, and its first column."""
    column = np.argmax(order_key(values), axis=1)
    return np.take_along_axis(values, column[:, None], axis=1)[:, 0], column
