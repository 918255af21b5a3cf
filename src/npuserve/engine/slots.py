"""KV slots: which are free, and what contexts the free ones still hold."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _WarmSlot:
    """A free slot: the tokens it holds, whose they are, and when it was let go (a counter)."""

    tokens: tuple[int, ...] = ()
    salt: str = ""
    freed_at: int = 0


class SlotTable:
    """Hands out slots, preferring the one that holds most of a prompt.

    A recurrent state cannot step back, so with `recurrent` a warm slot serves only a prompt that continues all of it.
    """

    def __init__(self, num_slots: int, *, recurrent: bool = False) -> None:
        self._num_slots = num_slots
        self._recurrent = recurrent
        self._free = {slot: _WarmSlot() for slot in range(num_slots)}
        self._num_releases = 0

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def num_free(self) -> int:
        return len(self._free)

    def acquire(self, prompt: Sequence[int], salt: str) -> tuple[int, int]:
        """Take a free slot; returns (slot, how many tokens of `prompt` it holds), at most all but the last.

        Only a context of the same `salt` counts. Among equals an empty slot is taken before a warm one, and the
        one that was freed longest ago before the others. Raises LookupError when none is free.
        """
        if not self._free:
            raise LookupError("no slot is free")
        num_cached = {slot: self._num_resumable(warm, prompt, salt) for slot, warm in self._free.items()}
        best = min(self._free, key=lambda slot: self._rank(slot, num_cached[slot]))
        del self._free[best]
        return best, num_cached[best]

    def release(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Give `slot` back, holding `tokens` from position 0 on (none when its content is unknown)."""
        assert 0 <= slot < self._num_slots, f"slot {slot} is not one of 0..{self._num_slots - 1}"
        assert slot not in self._free, f"slot {slot} was released twice"
        self._num_releases += 1
        self._free[slot] = _WarmSlot(tuple(tokens), salt, self._num_releases)

    def forget(self) -> None:
        """Drop what the free slots hold."""
        self._free = {slot: _WarmSlot() for slot in self._free}

    def _rank(self, slot: int, num_cached: int) -> tuple[int, bool, int, int]:
        warm = self._free[slot]
        return -num_cached, bool(warm.tokens), warm.freed_at, slot

    def _num_resumable(self, warm: _WarmSlot, prompt: Sequence[int], salt: str) -> int:
        if warm.salt != salt:
            return 0
        limit = min(len(warm.tokens), len(prompt) - 1)
        common = next((at for at in range(limit) if warm.tokens[at] != prompt[at]), limit)
        return 0 if self._recurrent and common < len(warm.tokens) else common
