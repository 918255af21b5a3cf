"""The LM head: chunks of rows through TMEM into the logits' place in DRAM."""

import math

from npuserve.isa.fields import Address
from npuserve.isa.spec import VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import WORD
from npuserve.program.kernels.registers import Reg
from npuserve.program.tmem import TmemLayout


def _cap(asm: Assembler, tmem: TmemLayout, size: int, cap: float) -> None:
    """cap * tanh(z / cap) in place, as 2 cap / (1 + exp2(-2 z / cap * log2 e)) - cap."""
    steps: tuple[tuple[VectorFunction, float | None], ...] = (
        (VectorFunction.MUL, -2 / cap * math.log2(math.e)),
        (VectorFunction.EXP2, None),
        (VectorFunction.ADD, 1.0),
        (VectorFunction.RECIP, None),
        (VectorFunction.MUL, 2 * cap),
        (VectorFunction.ADD, -cap),
    )
    for func, value in steps:
        asm.vop(func, tmem.logits, tmem.logits, value, rows=tmem.shape.logit_rows, cols=size, strides=(size, size, 0))


def head(asm: Assembler, tmem: TmemLayout, dram: DramLayout) -> None:
    """logits[row] = head @ ACT[row] for the shape's logit rows, fp32 [logit_rows, vocab_size] in DRAM."""
    chunk = tmem.logits_chunk
    whole, rest = divmod(dram.head.n, chunk)
    asm.set(Reg.LAYER, dram.head.weights)
    asm.set(Reg.SCALES, dram.head.scales)
    asm.set(Reg.LOGITS, dram.logits)
    if whole:
        with asm.loop(whole):
            _chunk(asm, tmem, dram, chunk)
            asm.step(Reg.LAYER, chunk * dram.head.row_stride)
            asm.step(Reg.SCALES, chunk * dram.head.scale_stride)
            asm.step(Reg.LOGITS, chunk * WORD)
    if rest:
        _chunk(asm, tmem, dram, rest)


def _chunk(asm: Assembler, tmem: TmemLayout, dram: DramLayout, size: int) -> None:
    asm.emit(
        "MM",
        sa=Address(Reg.LAYER, 0),
        ssa=Address(Reg.SCALES, 0),
        out=tmem.logits,
        n=size,
        kb=dram.head.blocks,
        rs=dram.head.row_stride,
        srs=dram.head.scale_stride,
        ors=size,
        m=tmem.shape.logit_rows,
        wf=dram.head.format.wf,
        pair=int(dram.head.paired),
    )
    cap = dram.geometry.facts.logit_cap
    if cap is not None:
        _cap(asm, tmem, size, cap)
    for row in range(tmem.shape.logit_rows):
        asm.emit(
            "ST",
            dst=Address(Reg.LOGITS, row * dram.head.n * WORD),
            src=tmem.logits + row * size,
            count=size,
        )
