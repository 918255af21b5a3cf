"""The LM head: chunks of rows through TMEM into the logits' place in DRAM."""

from npuserve.isa.fields import Address
from npuserve.program.assembler import Assembler
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import WORD
from npuserve.program.kernels.registers import Reg
from npuserve.program.tmem import TmemLayout


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
    )
    for row in range(tmem.shape.logit_rows):
        asm.emit(
            "ST",
            dst=Address(Reg.LOGITS, row * dram.head.n * WORD),
            src=tmem.logits + row * size,
            count=size,
        )
