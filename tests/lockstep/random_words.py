"""Random fp32 bit patterns with the values that go wrong over-represented."""

import numpy as np

from small_machine import Words

EDGES = np.array(
    [
        0x00000000, 0x80000000,                          # zeros
        0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF,  # denormals
        0x00800000, 0x80800000, 0x00800001, 0x00FFFFFF,  # around 2^-126
        0x01000000, 0x01800000, 0x02000000,              # where rsqrt rescales
        0x7E7FFFFF, 0x7E800000, 0xFE800000,              # where recip becomes zero
        0x7CFFFFFF, 0x7D000000, 0x7F7FFFFF, 0xFF7FFFFF,  # large
        0x7F800000, 0xFF800000,                          # infinities
        0x7FC00000, 0xFFC00000, 0x7F812345, 0xFFABCDEF,  # NaN, with payloads too
        0x3F7FFFFF, 0x3F800000, 0x3F800001, 0xBF800000,  # around 1
        0x3FB504F2, 0x3FB504F3, 0x3FB504F4,              # around sqrt(2), where log2 changes sides
        0xC2FC0000, 0xC2FC0001, 0x42FFFFFF, 0x43000000,  # the ends of exp2
        0x33800000, 0xB3800000,                          # 2^-24
        0x4EFFFFFF, 0x4F000000, 0xCF000000, 0xCF000001,  # the ends of int32
        0x42FE0000, 0x42FD0000, 0x42FF0000, 0x3F000000,  # int8 codes: 127, 126.5, 127.5, 0.5
    ],
    np.uint32,
)  # fmt: skip


def random_words(rng: np.random.Generator, count: int, wildness: float) -> Words:
    """uint32 [count]: normal deviates, with a share `wildness` of edges and of numbers of any exponent."""
    words = rng.standard_normal(count, np.float32).view(np.uint32)
    wild = rng.random(count) < wildness
    words[wild] = _wild_words(rng, int(wild.sum()))
    return words


def _wild_words(rng: np.random.Generator, count: int) -> Words:
    near_half_exponent = rng.integers(62, 67, count) << 23 | rng.integers(0, 1 << 23, count)
    kinds = np.stack(
        [
            rng.choice(EDGES, count),
            rng.integers(0, 1 << 32, count).astype(np.uint32),
            # Products of two such numbers fall around 2^-126.
            (near_half_exponent | rng.integers(0, 2, count) << 31).astype(np.uint32),
            rng.uniform(-130, 130, count).astype(np.float32).view(np.uint32),
            rng.integers(-5, 6, count).astype(np.float32).view(np.uint32),
        ]
    )
    return kinds[rng.integers(0, len(kinds), count), np.arange(count)]


def underflowing_words(rng: np.random.Generator, count: int) -> Words:
    """uint32 [count]: numbers around 2^-63, whose products and their sums underflow or just do not."""
    fields = rng.integers(60, 68, count) << 23 | rng.integers(0, 1 << 23, count) | rng.integers(0, 2, count) << 31
    return fields.astype(np.uint32)


def tiny_words(rng: np.random.Generator, count: int) -> Words:
    """uint32 [count]: the smallest normal numbers, whose sums underflow, denormals and zeros."""
    fields = rng.integers(0, 4, count) << 23 | rng.integers(0, 8, count) | rng.integers(0, 2, count) << 31
    return fields.astype(np.uint32)
