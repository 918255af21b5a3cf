"""The instruction table: rows round-trip, fields do not overlap, errors say what would fit."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.errors import EncodingError
from npuserve.isa.fields import Address, Base, Bits, Operand, Register, Value
from npuserve.isa.spec import BY_OPCODE, OPERATIONS, Operation, VectorFunction, decode, disassemble, encode

WORDS = st.lists(st.integers(0, 0xFFFF_FFFF), min_size=8, max_size=8)
OPERANDS = [
    pytest.param(operation, operand, id=f"{operation.name}.{operand.name}")
    for operation in OPERATIONS
    for operand in operation.operands
]


def values_of(operand: Operand) -> st.SearchStrategy[Value]:
    """All values that an operand's field can hold."""
    if isinstance(operand, Bits):
        return st.integers(0, (1 << operand.width) - 1)
    if isinstance(operand, Register):
        return st.integers(0, 15)
    return st.builds(Address, st.integers(0, 15), st.integers(0, 0xFFFF_FFFF))


@st.composite
def instructions(draw: st.DrawFn) -> tuple[Operation, dict[str, Value]]:
    operation = draw(st.sampled_from(OPERATIONS))
    return operation, {operand.name: draw(values_of(operand)) for operand in operation.operands}


@given(instructions())
def test_every_instruction_round_trips(instruction: tuple[Operation, dict[str, Value]]) -> None:
    operation, operands = instruction
    assert decode(encode(operation.name, **operands)) == (operation, operands)


@given(instructions())
def test_an_instruction_is_eight_words_of_32_bits(instruction: tuple[Operation, dict[str, Value]]) -> None:
    operation, operands = instruction
    words = encode(operation.name, **operands)
    assert len(words) == 8
    assert all(0 <= word <= 0xFFFF_FFFF for word in words)


@given(WORDS)
def test_bits_that_no_operand_holds_are_dropped_and_all_others_kept(words: list[int]) -> None:
    words[0] = words[0] & ~0xFF | OPERATIONS[words[1] % len(OPERATIONS)].opcode
    operation, operands = decode(words)
    held = [0xFF] + [0] * 7
    for operand in operation.operands:
        for word, mask in operand.mask():
            held[word] |= mask
    assert encode(operation.name, **operands) == [word & mask for word, mask in zip(words, held, strict=True)]


@given(WORDS)
def test_any_words_have_one_line_of_text(words: list[int]) -> None:
    text = disassemble(words)
    assert text
    assert "\n" not in text


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_no_two_fields_of_an_instruction_overlap(operation: Operation) -> None:
    taken = [0xFF] + [0] * 7
    for operand in operation.operands:
        for word, mask in operand.mask():
            assert not taken[word] & mask, f"{operand.name} overlaps in word {word}"
            taken[word] |= mask


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operand_names_of_an_instruction_differ(operation: Operation) -> None:
    assert max(Counter(operand.name for operand in operation.operands).values(), default=1) == 1


def test_no_two_instructions_share_an_opcode_or_a_name() -> None:
    assert len(BY_OPCODE) == len(OPERATIONS) == len({operation.name for operation in OPERATIONS})


def test_opcodes_are_those_of_the_card() -> None:
    assert {operation.name: operation.opcode for operation in OPERATIONS} == {
        "NOP": 0x00, "HALT": 0x01, "LI": 0x02, "ADDI": 0x03, "LOOP": 0x04, "BAR": 0x05, "RLD": 0x06, "WAITW": 0x07,
        "LD": 0x10, "ST": 0x11, "DSTEP": 0x12, "MM": 0x20, "QACT": 0x21, "QST": 0x22, "VOP": 0x30, "GATHER": 0x40,
    }  # fmt: skip


def test_words_of_one_instruction_by_hand() -> None:
    operands: dict[str, Value] = {"sa": Address(1, 0x80), "ssa": Address(2, 4), "out": Address(3, 5), "n": 6, "kb": 7}
    words = encode("MM", **operands, rs=0x100, ors=8, m=9, ab=10, srs=11, acc=1, wf=2, pair=1)
    assert words == [0x6203_2120, 0x80, 4, 5, 0x0007_0006, 0x100, 0x0A09_0008, 11]


def too_large(operand: Operand) -> tuple[Value, str]:
    """A value just beyond the field, and the largest that fits, as the message should say it."""
    if isinstance(operand, Bits):
        return 1 << operand.width, str((1 << operand.width) - 1)
    if isinstance(operand, Register):
        return 16, "R15"
    return Address(0, 1 << 32), str(0xFFFF_FFFF)


@pytest.mark.parametrize(("operation", "operand"), OPERANDS)
def test_a_value_beyond_its_field_is_refused_by_name_and_range(operation: Operation, operand: Operand) -> None:
    value, limit = too_large(operand)
    with pytest.raises(EncodingError) as caught:
        encode(operation.name, **{operand.name: value})
    message = str(caught.value)
    assert operation.name in message
    assert operand.name in message
    assert limit in message


@pytest.mark.parametrize(("operation", "operand"), OPERANDS)
def test_a_negative_number_is_refused_except_as_an_offset(operation: Operation, operand: Operand) -> None:
    if isinstance(operand, Base):
        words = encode(operation.name, **{operand.name: Address(3, -4)})
        assert decode(words)[1][operand.name] == Address(3, 0xFFFF_FFFC)
    else:
        with pytest.raises(EncodingError, match=operand.name):
            encode(operation.name, **{operand.name: -1})


def test_an_address_names_a_register_that_exists() -> None:
    with pytest.raises(EncodingError, match=r"src names R16, but registers are R0\.\.R15"):
        encode("LD", src=Address(16, 0))


def test_an_address_is_refused_where_a_number_belongs() -> None:
    with pytest.raises(EncodingError, match="count is a number"):
        encode("LD", count=Address(1, 0))


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(EncodingError, match="VOP"):
        encode("VOPP")
    with pytest.raises(EncodingError, match="count"):
        encode("LD", length=1)


def test_decoding_an_unknown_opcode_is_refused() -> None:
    with pytest.raises(EncodingError, match="0xff"):
        decode([0xFF] + [0] * 7)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (encode("NOP"), "NOP"),
        (encode("LI", rd=3, value=16), "LI rd=R3 value=16"),
        (encode("LD", src=Address(9, 0x40), dst=5, count=2), "LD src=R9+0x40 dst=0x5 count=2"),
        (encode("RLD", rd=1, src=2, raw=1), "RLD rd=R1 src=0x2 raw"),
        (encode("VOP", func=VectorFunction.RDOT, cols=4), "VOP RDOT cols=4"),
        (encode("VOP", func=7), "VOP func=7"),
        ([0x99] + [0] * 7, ".word 0x00000099" + " 0x00000000" * 7),
    ],
)
def test_disassembly(words: list[int], text: str) -> None:
    assert disassemble(words) == text
