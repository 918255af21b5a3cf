"""Who gets the next free slot: requests that wait for their first turn, and those that wait for another."""

from collections import deque

from npuserve.engine.sequence import Sequence


class WaitingLine:
    """First come, first served; with turns, at most `max_started` requests take part in them at once.

    Turns go round in order, but every second one is for a sequence that is behind (a prompt, or what a swap lost), if
    there is one: the oldest. So no prompt waits for more than one stream's turn, and no stream for more than one
    prompt's turn beside those of the other streams.
    """

    def __init__(self, max_started: int) -> None:
        self._max_started = max_started
        self._queue: deque[Sequence] = deque()
        self._paused: deque[Sequence] = deque()
        self._was_behind = False

    @property
    def queued(self) -> tuple[Sequence, ...]:
        """Not started, oldest first."""
        return tuple(self._queue)

    @property
    def paused(self) -> tuple[Sequence, ...]:
        """Between two turns, the next one first."""
        return tuple(self._paused)

    def __len__(self) -> int:
        return len(self._queue) + len(self._paused)

    def add(self, sequence: Sequence) -> None:
        """Queue a new request."""
        self._queue.append(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Take back one whose turn is over."""
        self._paused.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out one that has ended."""
        (self._queue if sequence in self._queue else self._paused).remove(sequence)

    def has_next(self, num_running: int) -> bool:
        """Whether somebody may take a slot while `num_running` have one."""
        return bool(self._paused) or self._may_start(num_running)

    def pop(self, num_running: int) -> Sequence | None:
        """Whose turn it is; None when nobody may take a slot."""
        if not self._paused:
            return self._queue.popleft() if self._may_start(num_running) else None
        behind = next((sequence for sequence in self._paused if sequence.num_pending > 1), None)
        if behind is None and self._may_start(num_running):
            behind = self._queue[0]
        self._was_behind = behind is not None and not self._was_behind
        if behind is None or not self._was_behind:
            return self._paused.popleft()
        self.remove(behind)
        return behind

    def _may_start(self, num_running: int) -> bool:
        return bool(self._queue) and num_running + len(self._paused) < self._max_started
