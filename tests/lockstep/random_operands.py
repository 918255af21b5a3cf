"""Where the operands of random instructions lie: addresses that stay inside, also while a loop steps them."""

from dataclasses import dataclass, field

import numpy as np

from npuserve.isa.fields import Address
from npuserve.isa.machine import MachineConfig

WINDOW_WORDS = 12_000


@dataclass(frozen=True, slots=True)
class Known:
    """A register whose value is `start` plus 0..count-1 steps, whenever the instruction at hand executes."""

    register: int
    start: int
    step: int = 0
    count: int = 1

    def drift(self) -> int:
        return self.step * (self.count - 1)


@dataclass(slots=True)
class Placer:
    """Draws places for operands. TMEM places lie in one window, so that instructions meet each other's results."""

    rng: np.random.Generator
    config: MachineConfig
    dram_limit: int
    known: list[Known] = field(default_factory=list)
    window: int = 0

    def __post_init__(self) -> None:
        spare = self.config.tmem_words - WINDOW_WORDS
        self.window = self.pick(0, spare, self.number(0, spare))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, low: int, high: int) -> int:
        """low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: int) -> int:
        return int(self.rng.choice(choices))

    def through(self, target: int, known: Known | None = None) -> Address:
        """An operand that means `target` (at the first step of its register, if that is stepped)."""
        if known is None:
            return Address(0, target)
        return Address(known.register, (target - known.start) % (1 << 32))

    def tmem(self, extent: int) -> tuple[Address, int]:
        """Operand and first word of `extent` words inside the window."""
        return self._place(extent, self.window, self.window + WINDOW_WORDS, 1)

    def dram(self, extent: int, align: int = 1) -> tuple[Address, int]:
        """Operand and first byte of `extent` bytes inside DRAM."""
        return self._place(extent, 0, self.dram_limit, align)

    def near(self, target: int) -> Address:
        """An operand for a TMEM word, moved into the memory if it is outside."""
        return self.through(min(max(target, 0), self.config.tmem_words - 1), self._register(1))

    def dram_at(self, target: int, align: int) -> Address:
        steady = [known for known in self.known if not known.step]
        return self.through(target, steady[self.number(0, len(steady) - 1)] if steady and self.chance(0.5) else None)

    def _place(self, extent: int, low: int, high: int, align: int) -> tuple[Address, int]:
        known = self._register(align)
        drift = known.drift() if known else 0
        room = (high - low - extent - drift) // align
        if room < 0:
            return Address(0, low), low
        target = low + align * self.number(0, room)
        return self.through(target, known), target

    def _register(self, align: int) -> Known | None:
        usable = [known for known in self.known if known.step % align == 0]
        return usable[self.number(0, len(usable) - 1)] if usable and self.chance(0.6) else None
