"""Short convolution over positions with its state: the last inputs of a slot, in card memory between steps."""

from npuserve.isa.fields import Address
from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.kernels.registers import Reg, SegmentWord
from npuserve.program.tmem import TmemLayout


def short_convolution(
    asm: Assembler, tmem: TmemLayout, *, row: Address, rows: int, weights: int, bias: int | None
) -> None:
    """attention = C * (sum over taps t of weights[t] * (B * x)[position - taps + 1 + t] + bias) for a segment's rows.

    `weights` are [taps][hidden] in TMEM, and B, C and x stand side by side in each row's input projection. The window
    of inputs begins with the segment's state, or zeros at the beginning of a conversation; its end is the new state.
    Sums go from the oldest tap to the newest, so that cutting a prompt changes nothing.
    """
    facts, stride, state = tmem.geometry.facts, tmem.row_stride, tmem.geometry.state
    size, taps = facts.hidden_size, facts.conv_taps
    window = tmem.scores
    asm.emit("RLD", rd=Reg.STATE, src=Address(Reg.SEGMENT, SegmentWord.STATE), raw=1)
    if state:
        _load_state(asm, window, state)

    def vop(func: VectorFunction, dst: int | Address, a: int | Address, b: int | Address, **strides: object) -> None:
        asm.vop(func, dst, a, b, rows=rows, cols=size, **strides)  # type: ignore[arg-type]

    def part(offset: int) -> Address:
        return Address(row.register, row.offset + offset)

    b, c, x = (part(tmem.qkv + index * size) for index in range(3))
    out, product = part(tmem.attention), b
    vop(VectorFunction.MUL, window + state, b, x, strides=(size, stride, stride))
    for tap in range(taps):
        to = product if tap else out
        column = {"strides": (stride, size, 0), "mode": BMode.PER_COLUMN}
        vop(VectorFunction.MUL, to, window + tap * size, weights + tap * size, **column)
        if tap:
            vop(VectorFunction.ADD, out, out, product, strides=(stride, stride, stride))
    if bias is not None:
        vop(VectorFunction.ADD, out, out, bias, strides=(stride, stride, 0), mode=BMode.PER_COLUMN)
    vop(VectorFunction.MUL, out, out, c, strides=(stride, stride, stride))
    if state:
        asm.emit("ST", dst=Address(Reg.STATE, 0), src=window + rows * size, count=state)


def _load_state(asm: Assembler, window: int, state: int) -> None:
    asm.emit("RLD", rd=Reg.HAS_STATE, src=Address(Reg.SEGMENT, SegmentWord.HAS_STATE), raw=1)
    asm.vop(VectorFunction.FILL, window, b=0.0, cols=state)
    with asm.loop(Address(Reg.HAS_STATE, 0)):
        asm.emit("LD", src=Address(Reg.STATE, 0), dst=window, count=state)
