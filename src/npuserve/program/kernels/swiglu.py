"""SwiGLU: silu(gate) * up, a few rows at a time so that the scratch stays in the cache."""

import math

from npuserve.isa.spec import VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.tmem import TmemLayout

LOG2_E = math.log2(math.e)


def swiglu(asm: Assembler, tmem: TmemLayout) -> None:
    """mlp = gate * recip(1 + exp2(-gate * log2 e)) * up for every row."""
    step = tmem.activation_rows
    for first in range(0, tmem.shape.rows, step):
        _rows(asm, tmem, first, min(step, tmem.shape.rows - first))


def _rows(asm: Assembler, tmem: TmemLayout, first: int, rows: int) -> None:
    size, stride = tmem.geometry.facts.intermediate_size, tmem.row_stride
    start = tmem.rows + first * stride
    gate, up, out, scratch = start + tmem.gate_up, start + tmem.gate_up + size, start + tmem.mlp, tmem.scores

    def vop(func: VectorFunction, dst: int, a: int, b: int | float | None, strides: tuple[int, int, int]) -> None:
        asm.vop(func, dst, a, b, rows=rows, cols=size, strides=strides)

    vop(VectorFunction.MUL, scratch, gate, -LOG2_E, (size, stride, 0))
    vop(VectorFunction.EXP2, scratch, scratch, None, (size, size, 0))
    vop(VectorFunction.ADD, scratch, scratch, 1.0, (size, size, 0))
    vop(VectorFunction.RECIP, scratch, scratch, None, (size, size, 0))
    vop(VectorFunction.MUL, scratch, scratch, gate, (size, size, stride))
    vop(VectorFunction.MUL, out, scratch, up, (stride, size, stride))
