"""How fast tokens come now, from a counter that is looked at once in a while."""

from collections import deque


class Throughput:
    """The rate of a growing count over the last `window_s` seconds; `sample` it every second or so."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, count: int) -> None:
        """Note `count` at `now_s`; times do not go back."""
        self._samples.append((now_s, count))
        # One sample from before the window stays: the count at the window's begin lies between it and the next.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()

    def per_second(self, now_s: float, count: int) -> float:
        """The rate up to now, `count` being the newest value; 0 without an earlier sample."""
        if not self._samples:
            return 0.0
        then_s, before = self._samples[0]
        return (count - before) / (now_s - then_s) if now_s > then_s else 0.0
