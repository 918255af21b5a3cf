"""The card's register file: offsets from BAR0 and named bits, in one table. Source: the public openTPU card manual."""

from enum import IntEnum, IntFlag

CARD_ID = 0x4F54_5055


class Register(IntEnum):
    """Byte offsets of the registers that a run needs."""

    ID = 0x000
    VERSION = 0x004
    CTRL = 0x008
    STATUS = 0x00C
    PROG_ADDR = 0x010
    PROG_N = 0x014
    CYCLES_LO = 0x018
    CYCLES_HI = 0x01C
    ICOUNT = 0x020
    SCRATCH = 0x038
    REGMAP = 0x03C
    CAPS = 0x040
    ACT_ROWS = 0x058
    EXTENSIONS = 0x05C
    """Ours: what the public card does not have. Read it with `extensions`."""
    ARG0 = 0x060


NUM_ARGUMENTS = 8


class Control(IntFlag):
    """Bits of CTRL. LOAD and CLEAR are pulses; LOAD is ignored while RUN is set."""

    RUN = 1
    LOAD = 2
    CLEAR = 4


class Status(IntFlag):
    """Bits of STATUS."""

    HALTED = 1 << 0
    ERROR = 1 << 1
    LOADING = 1 << 2
    WR_IDLE = 1 << 3
    AXI_ERR = 1 << 4
    CALIB0 = 1 << 5
    CALIB1 = 1 << 6
    RUN = 1 << 7
    WAIT_TO = 1 << 8


class Caps(IntFlag):
    """Bits of CAPS that software asks about; a clear bit means: do not emit that instruction."""

    W4 = 1 << 4
    PAIR = 1 << 5
    DSTEP = 1 << 6
    ACT_ROWS = 1 << 24
    ARGS = 1 << 25
    STREAM = 1 << 26
    GEN = 1 << 30
    WAITW = 1 << 31


class Extensions(IntFlag):
    """Bits of EXTENSIONS."""

    NVFP4 = 1 << 0


EXTENSIONS_MARK = 0x4E50
"""In the upper half where the register exists: a card without it may read as anything."""


def extensions_word(extensions: Extensions) -> int:
    """The EXTENSIONS register of a machine."""
    return EXTENSIONS_MARK << 16 | int(extensions)


def extensions(word: int) -> Extensions:
    """What the word read from EXTENSIONS stands for; none where the register does not exist."""
    return Extensions(word & 0xFFFF) & Extensions.NVFP4 if word >> 16 == EXTENSIONS_MARK else Extensions(0)


def version_word(depth: int, mcols: int, lanes: int) -> int:
    """The VERSION register of a machine."""
    return depth << 16 | mcols << 8 | lanes
