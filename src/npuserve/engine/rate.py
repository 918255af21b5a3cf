"""Counts per second over the last seconds."""

from collections import deque

WINDOW_S = 10.0
_BUCKET_S = 0.5


class Rate:
    """Adds up what happened in the last WINDOW_S seconds, to the nearest half second."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._buckets: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Note that `amount` happened now; times do not fall."""
        self._drop_old(now_s)
        start_s = now_s // _BUCKET_S * _BUCKET_S
        if self._buckets and self._buckets[-1][0] == start_s:
            self._buckets[-1] = (start_s, self._buckets[-1][1] + amount)
        else:
            self._buckets.append((start_s, amount))
        self._total += amount

    def per_s(self, now_s: float) -> float:
        """The average of the last WINDOW_S seconds, or since the start if that was later."""
        self._drop_old(now_s)
        return self._total / min(WINDOW_S, max(now_s - self._started_s, _BUCKET_S))

    def _drop_old(self, now_s: float) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - WINDOW_S - _BUCKET_S:
            self._total -= self._buckets.popleft()[1]
        if not self._buckets:
            self._total = 0.0
