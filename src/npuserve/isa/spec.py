"""The instruction table: the one place that says how an instruction is written down.

Encoder, decoder, disassembler and `docs/isa.md` are made from `OPERATIONS`; what an instruction does is said in
`sim/reference/`. Source: the public openTPU instruction set. STREAM is not in this table yet, so a machine stops with
an error where it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from npuserve.errors import EncodingError
from npuserve.isa.fields import WORD_MASK, WORDS_PER_INSTRUCTION, Base, Bits, Operand, Register, Value, flags


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table: mnemonic, opcode, operands in the order they are printed, and a line of meaning."""

    name: str
    opcode: int
    operands: tuple[Operand, ...]
    meaning: str


class VectorFunction(IntEnum):
    """`func` of VOP; 7 and everything above 20 is an error."""

    ADD = 0
    SUB = 1
    RSUB = 2
    MUL = 3
    MAX = 4
    MIN = 5
    OUTER = 6
    COPY = 8
    EXP2 = 9
    RECIP = 10
    RSQRT = 11
    ABS = 12
    FILL = 13
    EXP2SUB = 14
    LOG2 = 15
    RSUM = 16
    RMAX = 17
    RSSQ = 18
    RDOT = 19
    ARGMAX = 20


class BMode(IntEnum):
    """Where VOP's operand B comes from."""

    MATRIX = 0
    """T[b + r*brs + c]"""
    PER_ROW = 1
    """T[b + r*brs]; brs = 0 broadcasts one word"""
    PER_COLUMN = 2
    """T[b + c]"""
    IMMEDIATE = 3
    """R[rd] + w7 as fp32 bits"""


class Compare(IntEnum):
    """Condition of WAITW; 3 is an error."""

    EQ = 0
    NE = 1
    GE = 2


DELTA_STEP_COLUMNS = (64, 128, 192, 256)
DELTA_STEP_MAX_ROWS = 256


def word(name: str, index: int, meaning: str) -> Bits:
    return Bits(name, index, 0, 32, meaning)


def half(name: str, index: int, low: int, meaning: str) -> Bits:
    return Bits(name, index, low, 16, meaning)


def byte(name: str, index: int, low: int, meaning: str) -> Bits:
    return Bits(name, index, low, 8, meaning)


OPERATIONS: tuple[Operation, ...] = (
    Operation("NOP", 0x00, (), "nothing"),
    Operation(
        "HALT",
        0x01,
        (
            Register("address", "ra", "CHAIN: register with the DRAM byte address of the next program"),
            Register("count", "rb", "CHAIN: register with its number of instructions"),
            *flags(chain=(0, "load the next program and go on at its start")),
        ),
        "stop, or chain to a program in DRAM",
    ),
    Operation("LI", 0x02, (Register("rd", "rd", "written"), word("value", 1, "the value")), "R[rd] = value"),
    Operation(
        "ADDI",
        0x03,
        (Register("rd", "rd", "written"), Register("ra", "ra", "read"), word("value", 1, "added, mod 2^32")),
        "R[rd] = R[ra] + value",
    ),
    Operation(
        "LOOP",
        0x04,
        (word("body", 1, "instructions in the body, >= 1"), Base("count", "ra", 2, "executions; 0 skips the body")),
        "execute the next `body` instructions `count` times; nests to 4",
    ),
    Operation("BAR", 0x05, (), "wait until every slice is at a BAR"),
    Operation(
        "RLD",
        0x06,
        (
            Register("rd", "rd", "written; 0 writes nothing"),
            Base("src", "ra", 1, "TMEM word"),
            Base("factor", "rb", 2, "MUL: factor"),
            *flags(raw=(0, "take the bits, no conversion"), mul=(1, "multiply, low 32 bits")),
        ),
        "R[rd] = int(T[src])",
    ),
    Operation(
        "WAITW",
        0x07,
        (
            Base("src", "ra", 1, "DRAM byte address that is polled"),
            Base("dst", "rb", 2, "TMEM word that gets the value"),
            Base("ref", "rc", 3, "reference value"),
            word("mask", 4, "applied to the value before the comparison"),
            word("interval", 5, "cycles between polls"),
            word("timeout", 6, "cycles until the run fails; 0 never"),
            *flags(compare=(0, 2, "0 EQ, 1 NE, 2 GE (signed difference)")),
        ),
        "wait for a DRAM word",
    ),
    Operation(
        "LD",
        0x10,
        (
            Base("src", "ra", 1, "DRAM byte address"),
            Base("dst", "rb", 2, "TMEM word"),
            word("count", 3, "words"),
        ),
        "T[dst + i] = M32[src + 4i]",
    ),
    Operation(
        "ST",
        0x11,
        (
            Base("dst", "ra", 1, "DRAM byte address"),
            Base("src", "rb", 2, "TMEM word"),
            word("count", 3, "words"),
        ),
        "M32[dst + 4i] = T[src + i]",
    ),
    Operation(
        "DSTEP",
        0x12,
        (
            Base("state", "ra", 1, "DRAM byte address of St, fp32 [rows][cols], multiple of D"),
            Base("qk", "rb", 2, "TMEM word of q, and of k behind it"),
            Base("v", "rc", 3, "TMEM word of v"),
            half("rows", 4, 0, "rows of the state, 1..256"),
            half("cols", 4, 16, "columns of the state: 64, 128, 192 or 256"),
            word("g", 5, "TMEM word of the decay e"),
            word("o", 6, "TMEM word of the result"),
            word("gs", 7, "words from e to beta"),
            *flags(zero=(0, "take the state as +0 and do not read it")),
        ),
        "one head's step of the gated delta rule",
    ),
    Operation(
        "MM",
        0x20,
        (
            Base("sa", "ra", 1, "streamed rows, DRAM bytes, multiple of D"),
            Base("ssa", "rb", 2, "their scales, DRAM bytes; ASCALE: TMEM word of the row factors"),
            Base("out", "rc", 3, "TMEM word of the result"),
            half("n", 4, 0, "streamed rows"),
            half("kb", 4, 16, "blocks per row"),
            word("rs", 5, "streamed row stride, bytes, multiple of D"),
            half("ors", 6, 0, "result row stride, words"),
            byte("m", 6, 16, "stationary rows"),
            byte("ab", 6, 24, "first ACT block"),
            word("srs", 7, "scale row stride, bytes"),
            *flags(
                unit=(0, "scales are 1.0, none is read"),
                acc=(1, "add to what is there"),
                rmax=(2, "write each row's maximum behind the rows"),
                ascale=(3, "multiply what is there by the row factor first"),
                wf=(4, 2, "weight format: 0 int8, 1 int4, 2 fp4, 3 nvfp4 (ours)"),
                pair=(6, "4-bit: odd blocks meet ACT rows m.. on"),
            ),
        ),
        "T[out + j*ors + n] = sum over blocks of ACT[j] . row n",
    ),
    Operation(
        "QACT",
        0x21,
        (
            Base("src", "ra", 1, "TMEM word"),
            byte("rows", 2, 0, "rows"),
            byte("ab", 2, 8, "first ACT block"),
            half("kb", 2, 16, "blocks per row"),
            word("srs", 3, "source row stride, words"),
            word("cscale", 4, "CSCALE: TMEM word of the column factors"),
            word("rscale", 5, "RSCALE: TMEM word of the row factors"),
            *flags(
                row_scale=(0, "one scale for the whole row"),
                use_cscale=(1, "multiply by column factors"),
                use_rscale=(2, "multiply by row factors, first"),
                dup=(3, "write each row twice, for PAIR"),
            ),
        ),
        "quantize TMEM rows into ACT RAM",
    ),
    Operation(
        "QST",
        0x22,
        (
            Base("src", "ra", 1, "TMEM word"),
            Base("dst", "rb", 2, "DRAM byte address of the elements"),
            Base("sdst", "rc", 3, "DRAM byte address of the scales"),
            half("rows", 4, 0, "rows"),
            half("kb", 4, 16, "blocks per row"),
            word("srs", 5, "source row stride, words"),
            word("drs", 6, "destination row stride, bytes"),
            word("es", 7, "element stride, bytes"),
            *flags(row_scale=(0, "one scale for the whole row"), half=(1, "write only the first half of each row")),
        ),
        "quantize TMEM rows into DRAM",
    ),
    Operation(
        "VOP",
        0x30,
        (
            Bits("func", 6, 16, 8, "function"),
            Base("dst", "ra", 1, "TMEM word"),
            Base("a", "rb", 2, "TMEM word of A"),
            Base("b", "rc", 3, "TMEM word of B"),
            half("rows", 4, 0, "rows"),
            half("cols", 4, 16, "columns"),
            half("drs", 5, 0, "destination row stride, words"),
            half("ars", 5, 16, "row stride of A, words"),
            half("brs", 6, 0, "row stride of B, words"),
            Bits("bmode", 6, 24, 2, "0 matrix, 1 per row, 2 per column, 3 immediate"),
            Base("imm", "rd", 7, "fp32 bits; OUTER: TMEM word of C; ARGMAX: signed base"),
            *flags(dscalar=(0, "OUTER: one decay for all columns"), done=(1, "OUTER: decay is 1.0")),
        ),
        "element-wise functions and row reductions on TMEM",
    ),
    Operation(
        "GATHER",
        0x40,
        (
            Base("src", "ra", 1, "TMEM word in each slice"),
            Base("dst", "rb", 2, "TMEM word in all slices"),
            half("rows", 3, 0, "rows"),
            half("cols", 3, 16, "columns"),
            word("srs", 4, "source row stride, words"),
            word("drs", 5, "destination row stride, words"),
            word("seg", 6, "words between the segments of two slices"),
        ),
        "T_all[dst + s*seg + r*drs + c] = T_s[src + r*srs + c] for each slice s",
    ),
)

BY_NAME = {operation.name: operation for operation in OPERATIONS}
BY_OPCODE = {operation.opcode: operation for operation in OPERATIONS}


def encode(name: str, **operands: Value) -> list[int]:
    """The eight words of an instruction; operands left out are 0.

    Raises EncodingError for an unknown mnemonic or operand and for a value that its field cannot hold.
    """
    operation = BY_NAME.get(name)
    if operation is None:
        raise EncodingError(f"no instruction is called {name!r}; there are {', '.join(BY_NAME)}")
    words = [operation.opcode] + [0] * (WORDS_PER_INSTRUCTION - 1)
    for operand in operation.operands:
        if (value := operands.pop(operand.name, None)) is not None:
            _put(operation, operand, words, value)
    if operands:
        known = ", ".join(operand.name for operand in operation.operands)
        raise EncodingError(f"{name} has no operand {', '.join(operands)}; it has {known}")
    return words


def _put(operation: Operation, operand: Operand, words: list[int], value: Value) -> None:
    try:
        if isinstance(operand, Base):  # noqa: SIM114 - two branches, two types
            operand.put(words, value)
        elif isinstance(value, int):
            operand.put(words, value)
        else:
            raise EncodingError(f"{operand.name} is a number, not the address {value}")
    except EncodingError as error:
        raise EncodingError(f"{operation.name}: {error}") from None


def decode(words: Sequence[int]) -> tuple[Operation, dict[str, Value]]:
    """Mnemonic row and operand values of eight words; EncodingError for an opcode that is not in the table."""
    listed = [int(value) & WORD_MASK for value in words]
    operation = BY_OPCODE.get(listed[0] & 0xFF)
    if operation is None:
        raise EncodingError(f"opcode {listed[0] & 0xFF:#04x} is not an instruction of this machine")
    return operation, {operand.name: operand.get(listed) for operand in operation.operands}


def disassemble(words: Sequence[int]) -> str:
    """One line of text for any eight words; an unknown opcode is shown as data."""
    try:
        operation, values = decode(words)
    except EncodingError:
        return ".word " + " ".join(f"{int(value) & WORD_MASK:#010x}" for value in words)
    parts = [operation.name]
    for operand in operation.operands:
        value = values[operand.name]
        if operation.name == "VOP" and operand.name == "func":
            parts.append(VectorFunction(value).name if value in set(VectorFunction) else f"func={value}")
        elif isinstance(operand, Register):
            parts.append(f"{operand.name}=R{value}")
        elif isinstance(operand, Bits) and operand.word == 0:
            parts.extend([operand.name if operand.width == 1 else f"{operand.name}={value}"] if value else [])
        elif value not in (0, (0, 0)):
            parts.append(f"{operand.name}={value}")
    return " ".join(parts)
