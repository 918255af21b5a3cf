"""Gated products, activation(gate) * up, a few rows at a time so that the scratch stays in the cache."""

import math

from npuserve.isa.spec import VectorFunction
from npuserve.models.facts import Activation
from npuserve.program.assembler import Assembler
from npuserve.program.tmem import TmemLayout

LOG2_E = math.log2(math.e)
GELU_SLOPE = -2 * math.sqrt(2 / math.pi) * LOG2_E
GELU_CUBIC = 0.044715


def gated(asm: Assembler, tmem: TmemLayout, *, gate: int, up: int | None, out: int, size: int) -> None:
    """out = gate * recip(1 + exp2(e)) * up in every row, the parts being offsets in the row; without `up` it is 1.

    SiLU has e = -gate * log2 e. GELU's tanh approximation, gate * (1 + tanh(u)) / 2, is the same with e = -2 u * log2 e
    and u = sqrt(2 / pi) * (gate + 0.044715 gate^3).
    """
    step = tmem.activation_rows
    for first in range(0, tmem.shape.rows, step):
        rows, start = min(step, tmem.shape.rows - first), tmem.rows + first * tmem.row_stride
        _Rows(asm, tmem, rows, size).emit(start + gate, None if up is None else start + up, start + out)


class _Rows:
    """Some rows' share."""

    def __init__(self, asm: Assembler, tmem: TmemLayout, rows: int, size: int) -> None:
        self._asm, self._rows, self._size = asm, rows, size
        self._stride, self._scratch = tmem.row_stride, tmem.scores
        self._activation = tmem.geometry.facts.activation

    def emit(self, gate: int, up: int | None, out: int) -> None:
        scratch, stride, size = self._scratch, self._stride, self._size
        if self._activation is Activation.SILU:
            self._vop(VectorFunction.MUL, scratch, gate, -LOG2_E, (size, stride, 0))
        else:
            self._vop(VectorFunction.MUL, scratch, gate, gate, (size, stride, stride))
            self._vop(VectorFunction.MUL, scratch, scratch, GELU_SLOPE * GELU_CUBIC, (size, size, 0))
            self._vop(VectorFunction.ADD, scratch, scratch, GELU_SLOPE, (size, size, 0))
            self._vop(VectorFunction.MUL, scratch, scratch, gate, (size, size, stride))
        self._vop(VectorFunction.EXP2, scratch, scratch, None, (size, size, 0))
        self._vop(VectorFunction.ADD, scratch, scratch, 1.0, (size, size, 0))
        self._vop(VectorFunction.RECIP, scratch, scratch, None, (size, size, 0))
        if up is None:
            self._vop(VectorFunction.MUL, out, scratch, gate, (stride, size, stride))
            return
        self._vop(VectorFunction.MUL, scratch, scratch, gate, (size, size, stride))
        self._vop(VectorFunction.MUL, out, scratch, up, (stride, size, stride))

    def _vop(
        self, func: VectorFunction, dst: int, a: int, b: int | float | None, strides: tuple[int, int, int]
    ) -> None:
        self._asm.vop(func, dst, a, b, rows=self._rows, cols=self._size, strides=strides)


def gate_by_sigmoid(asm: Assembler, *, out: int, gate: int, rows: int, size: int, stride: int) -> None:
    """out *= recip(1 + exp2(-gate * log2 e)) in every row; the gate's words become its sigmoid."""
    sigmoid(asm, part=gate, rows=rows, size=size, stride=stride)
    asm.vop(VectorFunction.MUL, out, out, gate, rows=rows, cols=size, strides=(stride, stride, stride))


def sigmoid(asm: Assembler, *, part: int, rows: int, size: int, stride: int) -> None:
    """1 / (1 + exp(-x)) in place."""
    steps: tuple[tuple[VectorFunction, float | None], ...] = (
        (VectorFunction.MUL, -LOG2_E),
        (VectorFunction.EXP2, None),
        (VectorFunction.ADD, 1.0),
        (VectorFunction.RECIP, None),
    )
    for func, value in steps:
        asm.vop(func, part, part, value, rows=rows, cols=size, strides=(stride, stride, 0))
