"""Random programs: nested loops with stepped address registers around random instructions, some of them spoilt."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.fleet import Memory
from lockstep.random_instructions import SHARES
from lockstep.random_matrices import Matrix, lay_out, mm
from lockstep.random_operands import Known, Placer
from lockstep.random_words import random_words
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import BY_OPCODE, decode, encode
from small_machine import Words

CHAIN_BYTES = 16 << 10
"""At the end of DRAM, out of reach of legal random stores: the program that HALT may chain to."""
MAX_ELEMENTS = 300_000
MAX_DEPTH = 4
FIRST_ARGUMENT = 8
Program = list[list[int]]


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """A program with its run arguments and what memories hold when it starts."""

    program: Words
    args: tuple[int, ...]
    memory: Memory


@dataclass(slots=True)
class Writer:
    """Writes instructions; `spoil` is the share of them that get a wrong bit."""

    place: Placer
    matrices: list[Matrix]
    spoil: float
    output: Program = field(default_factory=list)

    def block(self, length: int, depth: int, loops_left: int) -> Program:
        """About `length` instructions; loops inside are at nesting level `depth` and deeper."""
        body: Program = []
        while len(body) < length:
            if depth < MAX_DEPTH and loops_left and self.place.chance(0.12):
                body += self.loop(depth, loops_left - 1)
            else:
                body.append(self.instruction())
        return body

    def loop(self, depth: int, loops_left: int) -> Program:
        """LI, LOOP, a body that ends with the step of the loop's own address register."""
        place = self.place
        register = 1 + depth
        known = Known(
            register, place.number(0, 5000) * 32, place.pick(0, 1, 4, 32, place.config.depth), place.pick(1, 2, 3)
        )
        place.known.append(known)
        body = self.block(place.number(1, 5), depth + 1, loops_left)
        place.known.remove(known)
        count = 0 if place.chance(0.1) else known.count
        step = encode("ADDI", rd=register, ra=register, value=known.step)
        steady = [entry for entry in place.known if not entry.step]
        head = encode("LOOP", body=len(body) + 1, count=place.through(count, steady[0] if steady else None))
        return [encode("LI", rd=register, value=known.start), head, *body, step]

    def instruction(self) -> list[int]:
        place = self.place
        if place.chance(0.2):
            words = mm(place, self.matrices)
        else:
            kinds = list(SHARES)
            words = kinds[int(place.rng.choice(len(kinds), p=np.array(list(SHARES.values()))))](place)
        return self.spoilt(words) if place.chance(self.spoil) else words

    def spoilt(self, words: list[int]) -> list[int]:
        """The instruction with one or two bits turned over, unless that makes it too large to execute in a test."""
        wrong = list(words)
        for _ in range(self.place.number(1, 2)):
            wrong[self.place.number(0, 7)] ^= 1 << self.place.number(0, 31)
        return wrong if is_small(wrong) else words


def is_small(words: list[int]) -> bool:
    if words[0] & 0xFF not in BY_OPCODE:
        return True
    _, operands = decode(words)
    values = [operands.get(name) for name in ("rows", "cols", "kb", "n", "m")]
    sizes = [value for value in values if isinstance(value, int)]
    return bool(np.prod([max(size, 1) for size in sizes], dtype=np.int64) <= MAX_ELEMENTS // 32)


def random_program(seed: int, config: MachineConfig, dram_bytes: int, length: int = 40) -> RandomProgram:
    """The program of a seed; the same for all time as long as NumPy's generator stays."""
    rng = np.random.default_rng(seed)
    wildness = float(rng.choice([0.0, 0.01, 0.3]))
    limit = dram_bytes - CHAIN_BYTES
    args = tuple(int(value) for value in rng.choice([0, 1, 4096, 0xFFFF_FF80, 0x8000_0000, 123], 8))
    place = Placer(rng, config, limit)
    place.known = [Known(FIRST_ARGUMENT + i, value) for i, value in enumerate(args)]
    dram = random_words(rng, dram_bytes // 4, wildness).view(np.uint8)
    matrices = lay_out(rng, dram, config.depth, limit, wildness)
    writer = Writer(place, matrices, spoil=float(rng.choice([0.0, 0.0, 0.05, 0.3])))
    program = writer.block(length, 0, loops_left=4) + _ending(writer, dram, limit)
    return RandomProgram(np.array(program, np.uint32), args, Memory({0: dram}, *_fast_memories(rng, config, wildness)))


def _ending(writer: Writer, dram: NDArray[np.uint8], limit: int) -> Program:
    """HALT, or a chain to a second program, which is laid into DRAM."""
    if not writer.place.chance(0.3):
        return [encode("HALT")]
    second = [*writer.block(10, 0, loops_left=1), encode("HALT")]
    words = np.array(second, np.uint32).view(np.uint8).ravel()
    dram[limit : limit + words.size] = words
    chain = encode("HALT", chain=1, address=1, count=2)
    return [encode("LI", rd=1, value=limit), encode("LI", rd=2, value=len(second)), chain]


def _fast_memories(
    rng: np.random.Generator, config: MachineConfig, wildness: float
) -> tuple[Words, tuple[NDArray[np.int8], Words]]:
    """TMEM, and ACT RAM with codes as the quantizer makes them, -127..127."""
    codes = rng.integers(-127, 128, (config.act_rows, config.act_blocks * config.depth), np.int8)
    scales = random_words(rng, config.act_rows * config.act_blocks, wildness).reshape(config.act_rows, -1)
    return random_words(rng, config.tmem_words, wildness), (codes, scales)
