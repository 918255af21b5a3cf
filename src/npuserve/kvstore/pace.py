"""How long a kind of work takes, as measured."""

_NEWEST = 0.2
# A pace that made us choose otherwise is not measured any more; it is doubted a little with every such choice.
_DOUBT = 0.97


class Pace:
    """A running average of seconds per unit."""

    def __init__(self) -> None:
        self._seconds_per_unit: float | None = None

    @property
    def seconds_per_unit(self) -> float | None:
        """None before the first measurement."""
        return self._seconds_per_unit

    @property
    def units_per_s(self) -> float:
        """0 before the first measurement."""
        return 1.0 / self._seconds_per_unit if self._seconds_per_unit else 0.0

    def observe(self, num_units: float, seconds: float) -> None:
        """Take in that `num_units` took `seconds`."""
        if num_units <= 0:
            return
        measured = max(seconds, 1e-9) / num_units
        before = self._seconds_per_unit
        self._seconds_per_unit = measured if before is None else before + _NEWEST * (measured - before)

    def doubt(self) -> None:
        """Note that another way was taken because of this pace; it will be tried again some time."""
        if self._seconds_per_unit is not None:
            self._seconds_per_unit *= _DOUBT
