"""Bit fields of an instruction: one declaration gives encoding, decoding, range check and text.

An instruction is eight little-endian 32-bit words. Word 0 holds opcode [7:0], the register numbers ra [11:8],
rb [15:12], rc [19:16], rd [23:20] and the flags [31:24]; words 1 to 7 hold what each instruction says.
"""

from dataclasses import dataclass
from typing import NamedTuple

from npuserve.errors import EncodingError

WORDS_PER_INSTRUCTION = 8
BYTES_PER_INSTRUCTION = 32
WORD_MASK = 0xFFFF_FFFF
REGISTER_NIBBLES = {"ra": 8, "rb": 12, "rc": 16, "rd": 20}
FLAG_SHIFT = 24


class Address(NamedTuple):
    """The operand R[register] + offset, wrapped to 32 bits; register 0 reads as zero."""

    register: int
    offset: int

    def __str__(self) -> str:
        return f"R{self.register}+{self.offset:#x}" if self.register else f"{self.offset:#x}"


@dataclass(frozen=True, slots=True)
class Bits:
    """An unsigned number in bits [low + width - 1 : low] of one word."""

    name: str
    word: int
    low: int
    width: int
    meaning: str

    def put(self, words: list[int], value: int) -> None:
        if not 0 <= value < 1 << self.width:
            raise EncodingError(
                f"{self.name} is {value}, but its {self.width}-bit field holds 0..{(1 << self.width) - 1}"
            )
        words[self.word] |= value << self.low

    def get(self, words: list[int]) -> int:
        return words[self.word] >> self.low & ((1 << self.width) - 1)

    def mask(self) -> list[tuple[int, int]]:
        return [(self.word, ((1 << self.width) - 1) << self.low)]

    def where(self) -> str:
        return f"w{self.word}" if self.width == 32 else f"w{self.word}[{self.low + self.width - 1}:{self.low}]"


@dataclass(frozen=True, slots=True)
class Base:
    """An address: a register number in word 0 and an immediate word that is added to it."""

    name: str
    register: str
    word: int
    meaning: str

    def put(self, words: list[int], value: Address | int) -> None:
        address = Address(0, value) if isinstance(value, int) else value
        if not 0 <= address.register < 16:
            raise EncodingError(f"{self.name} names R{address.register}, but registers are R0..R15")
        if not -(1 << 31) <= address.offset <= WORD_MASK:
            raise EncodingError(
                f"{self.name} has offset {address.offset}, but its 32-bit field holds {-(1 << 31)}..{WORD_MASK}"
            )
        words[0] |= address.register << REGISTER_NIBBLES[self.register]
        words[self.word] |= address.offset & WORD_MASK

    def get(self, words: list[int]) -> Address:
        return Address(words[0] >> REGISTER_NIBBLES[self.register] & 0xF, words[self.word])

    def mask(self) -> list[tuple[int, int]]:
        return [(0, 0xF << REGISTER_NIBBLES[self.register]), (self.word, WORD_MASK)]

    def where(self) -> str:
        return f"R[{self.register}] + w{self.word}"


@dataclass(frozen=True, slots=True)
class Register:
    """A register number in word 0."""

    name: str
    register: str
    meaning: str

    def put(self, words: list[int], value: int) -> None:
        if not 0 <= value < 16:
            raise EncodingError(f"{self.name} names R{value}, but registers are R0..R15")
        words[0] |= value << REGISTER_NIBBLES[self.register]

    def get(self, words: list[int]) -> int:
        return words[0] >> REGISTER_NIBBLES[self.register] & 0xF

    def mask(self) -> list[tuple[int, int]]:
        return [(0, 0xF << REGISTER_NIBBLES[self.register])]

    def where(self) -> str:
        return f"{self.register} (w0)"


Operand = Bits | Base | Register
Value = int | Address


def flags(**bits: tuple[int, str] | tuple[int, int, str]) -> tuple[Bits, ...]:
    """Flag fields of word 0: name=(bit, meaning) or name=(bit, width, meaning), bits counted from 24."""
    made = []
    for name, entry in bits.items():
        bit, width, meaning = entry if len(entry) == 3 else (entry[0], 1, entry[1])
        made.append(Bits(name, 0, FLAG_SHIFT + bit, width, meaning))
    return tuple(made)
