"""KV slots: which are free, and what contexts the free ones still hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npuserve.core import PAGE_TOKENS

_STRETCH = 128


@dataclass(frozen=True, slots=True)
class Context:
    """The first `num_tokens` of `tokens`, run under `salt`, as a slot holds them; it changed hands at `since_s`."""

    tokens: Sequence[int] = ()
    num_tokens: int = 0
    salt: str = ""
    since_s: float = 0.0


class Acquired(NamedTuple):
    """A slot, how many tokens of the prompt it holds, and what it held if more than those is lost."""

    slot: int
    num_cached: int
    displaced: Context | None


@dataclass(frozen=True, slots=True)
class _FreeSlot:
    """A free slot: the context it holds and when it was let go (a counter)."""

    context: Context = Context()
    freed_at: int = 0


class SlotTable:
    """Hands out slots, preferring the one that holds most of a prompt.

    A recurrent state cannot step back, so with `recurrent` a warm slot serves only a prompt that continues all of it.
    """

    def __init__(self, num_slots: int, *, recurrent: bool = False) -> None:
        self._num_slots = num_slots
        self._recurrent = recurrent
        self._free = {slot: _FreeSlot() for slot in range(num_slots)}
        self._num_releases = 0

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def num_free(self) -> int:
        return len(self._free)

    def acquire(self, prompt: Sequence[int], salt: str, num_stored: int | None = None) -> Acquired:
        """Take a free slot; it holds at most all tokens of `prompt` but the last.

        Only a context of the same `salt` counts. Among equals an empty slot is taken before a warm one, and the
        one that was freed longest ago before the others. Where `num_stored` tokens of the prompt can be restored into
        any slot, the context of another prompt is not overwritten just for the start that both share. Raises
        LookupError when no slot is free.
        """
        if not self._free:
            raise LookupError("no slot is free")
        prompt = tuple(prompt)
        common = {slot: self._num_resumable(free.context, prompt, salt) for slot, free in self._free.items()}
        slot = min(self._free, key=lambda slot: self._rank(slot, common[slot], num_stored))
        context = self._free.pop(slot).context
        return Acquired(slot, common[slot], context if context.num_tokens > common[slot] else None)

    def release(self, slot: int, tokens: Sequence[int], salt: str, now_s: float = 0.0) -> None:
        """Give `slot` back now, holding `tokens` from position 0 on (none when its content is unknown)."""
        assert 0 <= slot < self._num_slots, f"slot {slot} is not one of 0..{self._num_slots - 1}"
        assert slot not in self._free, f"slot {slot} was released twice"
        self._num_releases += 1
        self._free[slot] = _FreeSlot(Context(tuple(tokens), len(tokens), salt, now_s), self._num_releases)

    def contexts(self) -> list[tuple[int, Context]]:
        """What the free slots hold, as (slot, context), the one freed last first."""
        order = sorted(self._free.items(), key=lambda item: -item[1].freed_at)
        return [(slot, free.context) for slot, free in order if free.context.num_tokens]

    def forget(self) -> None:
        """Drop what the free slots hold."""
        self._free = {slot: _FreeSlot() for slot in self._free}

    def _rank(self, slot: int, num_common: int, num_stored: int | None) -> tuple[int, bool, int, int]:
        free = self._free[slot]
        if num_stored is not None and not self._is_worth_it(free.context, num_common, num_stored):
            num_common = 0
        return -num_common, free.context.num_tokens > 0, free.freed_at, slot

    @staticmethod
    def _is_worth_it(context: Context, num_common: int, num_stored: int) -> bool:
        """Whether most of a context is used again, or it saves computing at least a page."""
        return 2 * num_common >= context.num_tokens or num_common >= num_stored + PAGE_TOKENS

    def _num_resumable(self, context: Context, prompt: Sequence[int], salt: str) -> int:
        if context.salt != salt:
            return 0
        common = _num_common(context.tokens, prompt, min(context.num_tokens, len(prompt) - 1))
        return 0 if self._recurrent and common < context.num_tokens else common


def _num_common(tokens: Sequence[int], others: Sequence[int], limit: int) -> int:
    """Length of the common start of two tuples, `limit` at most; equal stretches are compared as wholes."""
    start = 0
    while start < limit and tokens[start : start + _STRETCH] == others[start : start + _STRETCH]:
        start += _STRETCH
    end = min(limit, start + _STRETCH)
    return next((at for at in range(min(start, limit), end) if tokens[at] != others[at]), min(end, limit))
