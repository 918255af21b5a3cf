"""The gated delta rule on a state in DRAM: DSTEP."""

import numpy as np

from npuserve.isa.spec import DELTA_STEP_COLUMNS, DELTA_STEP_MAX_ROWS
from npuserve.sim.arithmetic import Words, add, mul, sub, vector_sum
from npuserve.sim.reference.state import Operands, State


def delta_step(state: State, operands: Operands) -> None:
    """d = (v - e (St k)) beta, St = e St + d k^T, o = St q, rounded like RDOT, MUL, SUB, MUL, OUTER, RDOT.

    All inputs are read before the state is written, and the state before o, which may lie over the inputs. A state that
    is taken as zero goes through the same arithmetic: an infinite e makes it NaN.
    """
    rows, cols = operands["rows"], operands["cols"]
    _check(state, rows, cols, operands["state"])
    places = state.dram_grid(operands["state"], rows, 4 * cols, cols, 4)
    q, k = _vector(state, operands["qk"], cols), _vector(state, operands["qk"] + cols, cols)
    v = _vector(state, operands["v"], rows)
    decay, beta = _vector(state, operands["g"], 1), _vector(state, operands["g"] + operands["gs"], 1)
    target = state.tmem_grid(operands["o"], 1, 0, rows)
    old = np.zeros((rows, cols), np.uint32) if operands["zero"] else state.read_words(places)
    error = mul(sub(v, mul(vector_sum(mul(old, k)), decay)), beta)
    new = add(mul(old, decay), mul(error[:, None], k))
    state.write_words(places, new)
    state.write_tmem(target, vector_sum(mul(new, q)))


def _check(state: State, rows: int, cols: int, address: int) -> None:
    state.require(state.config.dstep, f"{state.config.name} has no DSTEP")
    state.require_range("rows", rows, DELTA_STEP_MAX_ROWS)
    state.require(cols in DELTA_STEP_COLUMNS, f"cols is {cols}, but 64, 128, 192 and 256 are possible")
    state.require(address % state.config.depth == 0, f"state {address:#x} is no multiple of D")


def _vector(state: State, start: int, count: int) -> Words:
    words: Words = state.tmem[state.tmem_grid(start, 1, 0, count)[0]]
    return words
