"""Log probabilities that wait for the text of their tokens."""

from collections import deque

from npuserve.text.piece import TokenEntry


class TokenEntries:
    """Entries in order, each with where its token's text ends: it may be sent when all of that text was."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[TokenEntry, int]] = deque()

    def add(self, entry: TokenEntry, end: int) -> None:
        """Put `entry` last; its text ends before character `end` of the reply."""
        self._waiting.append((entry, end))

    def take(self, num_released: int) -> tuple[TokenEntry, ...]:
        """Entries whose text lies in the first `num_released` characters."""
        taken: list[TokenEntry] = []
        while self._waiting and self._waiting[0][1] <= num_released:
            taken.append(self._waiting.popleft()[0])
        return tuple(taken)

    def finish(self, cut_at: int | None) -> tuple[TokenEntry, ...]:
        """All that wait, or those of them whose text begins before the reply was cut."""
        entries = tuple(entry for entry, _ in self._waiting if cut_at is None or entry.offset < cut_at)
        self._waiting.clear()
        return entries
