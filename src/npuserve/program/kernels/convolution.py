"""Short convolution over positions with its state: the last inputs of a slot, in card memory between steps."""

from npuserve.isa.fields import Address
from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.kernels.registers import Reg, SegmentWord
from npuserve.program.tmem import TmemLayout


def short_convolution(
    asm: Assembler, tmem: TmemLayout, *, row: Address, rows: int, weights: int, bias: int | None
) -> None:
    """attention = C * (conv(B * x) + bias) for a segment's rows; B, C and x stand side by side in the projection."""
    size, stride = tmem.geometry.facts.conv_channels, tmem.row_stride
    b, c, x = (Address(row.register, row.offset + tmem.qkv + index * size) for index in range(3))
    out = Address(row.register, row.offset + tmem.attention)
    load_state(asm, tmem)
    newest = tmem.scores + tmem.geometry.conv_state
    asm.vop(VectorFunction.MUL, newest, b, x, rows=rows, cols=size, strides=(size, stride, stride))
    convolve(asm, tmem, rows=rows, out=out, product=b, weights=weights)
    if bias is not None:
        strides = (stride, stride, 0)
        asm.vop(VectorFunction.ADD, out, out, bias, rows=rows, cols=size, strides=strides, mode=BMode.PER_COLUMN)
    asm.vop(VectorFunction.MUL, out, out, c, rows=rows, cols=size, strides=(stride, stride, stride))


def convolve(asm: Assembler, tmem: TmemLayout, *, rows: int, out: Address, product: Address, weights: int) -> None:
    """out = sum over taps t of weights[t] * input[position - taps + 1 + t], and the new state into card memory.

    `weights` are [taps][channels] in TMEM. The window of inputs at `scores` begins with the segment's state. Sums go
    from the oldest tap to the newest, so that cutting a prompt changes nothing. `product` is scratch in the rows.
    """
    facts, stride, state = tmem.geometry.facts, tmem.row_stride, tmem.geometry.conv_state
    size, window = facts.conv_channels, tmem.scores
    for tap in range(facts.conv_taps):
        asm.vop(
            VectorFunction.MUL,
            product if tap else out,
            window + tap * size,
            weights + tap * size,
            rows=rows,
            cols=size,
            strides=(stride, size, 0),
            mode=BMode.PER_COLUMN,
        )
        if tap:
            asm.vop(VectorFunction.ADD, out, out, product, rows=rows, cols=size, strides=(stride, stride, stride))
    if state:
        asm.emit("ST", dst=Address(Reg.STATE, 0), src=window + rows * size, count=state)


def load_state(asm: Assembler, tmem: TmemLayout) -> None:
    """The window's beginning: the segment's state, or zeros at the beginning of a conversation."""
    window, state = tmem.scores, tmem.geometry.conv_state
    asm.emit("RLD", rd=Reg.STATE, src=Address(Reg.SEGMENT, SegmentWord.STATE), raw=1)
    if not state:
        return
    asm.emit("RLD", rd=Reg.HAS_STATE, src=Address(Reg.SEGMENT, SegmentWord.HAS_STATE), raw=1)
    asm.vop(VectorFunction.FILL, window, b=0.0, cols=state)
    with asm.loop(Address(Reg.HAS_STATE, 0)):
        asm.emit("LD", src=Address(Reg.STATE, 0), dst=window, count=state)
