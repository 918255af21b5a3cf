"""Uniform draws from a counter: the value at a position needs no earlier draw and no state."""

_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """The draw of a 64-bit `seed` at `position`, in [0, 1) with 53 random bits; integers only, so the same everywhere.

    It is the SplitMix64 stream (Steele, Lea and Flood, 2014) that starts at the mixed seed, taken at element
    `position`: mixing the seed first keeps the streams of neighbouring seeds apart.
    """
    start = _mix(seed + _GAMMA)
    return (_mix(start + (position + 1) * _GAMMA) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """Stafford's variant 13 of the 64-bit finalizer, as SplitMix64 uses it."""
    value &= _MASK64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)
