"""The vector unit: VOP, its element-wise functions, its row reductions, and OUTER."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npuserve.isa.spec import BMode, VectorFunction
from npuserve.sim import arithmetic
from npuserve.sim.arithmetic import ONE, Words, add, flush, i2f, mul, vector_sum
from npuserve.sim.reference.matrix import row_maximum
from npuserve.sim.reference.state import Indices, Operands, State

UNARY: dict[VectorFunction, Callable[[Words], Words]] = {
    VectorFunction.COPY: arithmetic.flush,
    VectorFunction.EXP2: arithmetic.exp2,
    VectorFunction.RECIP: arithmetic.recip,
    VectorFunction.RSQRT: arithmetic.rsqrt,
    VectorFunction.ABS: arithmetic.absolute,
    VectorFunction.LOG2: arithmetic.log2,
}
BINARY: dict[VectorFunction, Callable[[Words, Words], Words]] = {
    VectorFunction.ADD: arithmetic.add,
    VectorFunction.SUB: arithmetic.sub,
    VectorFunction.RSUB: lambda a, b: arithmetic.sub(b, a),
    VectorFunction.MUL: arithmetic.mul,
    VectorFunction.MAX: arithmetic.maximum,
    VectorFunction.MIN: arithmetic.minimum,
    VectorFunction.EXP2SUB: arithmetic.exp2_sub,
}
READS_A_ALONE = {*UNARY, VectorFunction.RSUM, VectorFunction.RMAX, VectorFunction.RSSQ, VectorFunction.ARGMAX}
REDUCTIONS = {*READS_A_ALONE, VectorFunction.RDOT} - set(UNARY)
MAX_OUTER_COLUMNS = 256
NEVER = np.iinfo(np.int64).max


def vector_operation(state: State, operands: Operands) -> None:
    """Read A and B, compute, write; without a hazard that is the same as element after element in order."""
    rows, cols = operands["rows"], operands["cols"]
    known = operands["func"] in set(VectorFunction)
    state.require(known, f"there is no vector function {operands['func']}")
    state.require(rows > 0 and cols > 0, f"{rows} rows of {cols} columns, but both must be 1 or more")
    function = VectorFunction(operands["func"])
    kind = _outer if function is VectorFunction.OUTER else _reduce if function in REDUCTIONS else _elementwise
    result = kind(state, function, operands)
    _check_hazard(state, cols, result)
    state.write_tmem(result.target, result.values)


class _Result(NamedTuple):
    """What a VOP would write, and the words [rows, cols] that element (r, c) reads.

    Target and values are [rows, cols] with element (r, c) as writer, or (`by_row`) [rows, 1 or 2] written by the
    row's last element.
    """

    target: Indices
    values: Words
    reads: list[Indices]
    by_row: bool = False


def _check_hazard(state: State, cols: int, result: _Result) -> None:
    """Fault if an element reads a word that an earlier one (row-major) has written; its own write is no harm."""
    target = result.target
    elements = np.arange(target.shape[0] * cols).reshape(-1, cols)
    writers = elements[:, -1:] if result.by_row else elements
    first_writer = np.full(state.config.tmem_words, NEVER)
    np.minimum.at(first_writer, target, np.broadcast_to(writers, target.shape))
    for indices in result.reads:
        late = first_writer[indices] < elements
        state.require(not late.any(), f"hazard: TMEM word {indices[late].min(initial=NEVER)} is overwritten, then read")


def _indices_of_a(state: State, operands: Operands) -> Indices:
    return state.tmem_grid(operands["a"], operands["rows"], operands["ars"], operands["cols"])


def _read_b(state: State, operands: Operands) -> tuple[Words, list[Indices]]:
    """B [rows, cols], and where it was read: nowhere when it is the immediate."""
    rows, cols, mode = operands["rows"], operands["cols"], BMode(operands["bmode"])
    if mode is BMode.IMMEDIATE:
        return np.full((rows, cols), operands["imm"], np.uint32), []
    row_stride = 0 if mode is BMode.PER_COLUMN else operands["brs"]
    column_stride = 0 if mode is BMode.PER_ROW else 1
    indices = state.tmem_grid(operands["b"], rows, row_stride, cols, column_stride)
    return state.tmem[indices], [indices]


def _elementwise(state: State, function: VectorFunction, operands: Operands) -> _Result:
    """FILL leaves A unread, the functions of one operand leave B unread."""
    target = state.tmem_grid(operands["dst"], operands["rows"], operands["drs"], operands["cols"])
    if function is VectorFunction.FILL:
        b, reads = _read_b(state, operands)
        return _Result(target, flush(b), reads)
    a = _indices_of_a(state, operands)
    if function in UNARY:
        return _Result(target, UNARY[function](state.tmem[a]), [a])
    b, reads = _read_b(state, operands)
    return _Result(target, BINARY[function](state.tmem[a], b), [a, *reads])


def _reduce(state: State, function: VectorFunction, operands: Operands) -> _Result:
    """One word for each row; ARGMAX writes a second one with the column."""
    if function is VectorFunction.ARGMAX:
        return _argmax(state, operands)
    indices = _indices_of_a(state, operands)
    a, reads = state.tmem[indices], [indices]
    target = state.tmem_grid(operands["dst"], operands["rows"], operands["drs"])
    if function is VectorFunction.RMAX:
        return _Result(target, row_maximum(flush(a))[0][:, None], reads, by_row=True)
    if function is VectorFunction.RDOT:
        b, reads_of_b = _read_b(state, operands)
        a, reads = mul(a, b), [*reads, *reads_of_b]
    elif function is VectorFunction.RSSQ:
        a = mul(a, a)
    return _Result(target, vector_sum(a)[:, None], reads, by_row=True)


def _argmax(state: State, operands: Operands) -> _Result:
    """The row's maximum and, as fp32, the first column that holds it plus the signed base."""
    rows, drs = operands["rows"], operands["drs"]
    state.require(rows == 1 or drs >= 2, f"ARGMAX of {rows} rows needs drs >= 2, not {drs}")
    indices = _indices_of_a(state, operands)
    target = state.tmem_grid(operands["dst"], rows, drs, 2)
    largest, column = row_maximum(flush(state.tmem[indices]))
    position = (column + operands["imm"]).astype(np.uint32).view(np.int32)
    return _Result(target, np.stack([largest, i2f(position)], axis=1), [indices], by_row=True)


def _outer(state: State, function: VectorFunction, operands: Operands) -> _Result:
    """S = S * decay + B(r) * C(c), in place on dst; C and the decay are read before anything is written."""
    rows, cols = operands["rows"], operands["cols"]
    state.require(operands["bmode"] == BMode.PER_ROW, f"OUTER takes bmode 1, not {operands['bmode']}")
    state.require(cols <= MAX_OUTER_COLUMNS, f"OUTER takes {MAX_OUTER_COLUMNS} columns, not {cols}")
    target = state.tmem_grid(operands["dst"], rows, operands["drs"], cols)
    factors = state.tmem[state.tmem_grid(operands["imm"], 1, 0, cols)]
    b, reads = _read_b(state, operands)
    kept = mul(state.tmem[target], _decay(state, operands))
    return _Result(target, add(kept, mul(b, factors)), [target, *reads])


def _decay(state: State, operands: Operands) -> Words:
    """1.0 with DONE, which wins over DSCALAR; fp32 bits [1, 1 or cols]."""
    if operands["done"]:
        return np.full((1, 1), ONE)
    return state.tmem[state.tmem_grid(operands["a"], 1, 0, 1 if operands["dscalar"] else operands["cols"])]
