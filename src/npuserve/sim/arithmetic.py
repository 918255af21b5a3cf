"""The machine's scalar arithmetic on arrays of fp32 bit patterns; this is the specification in code.

Every function takes and returns uint32 arrays that hold fp32 bits (unless it says int32 or int8) and broadcasts
like NumPy. Results are rounded to nearest even; denormal inputs count as zero of their sign, and so does a result
that is denormal after rounding on the subnormal grid. NaN results are the one pattern CANONICAL_NAN.
Source of all constants and sequences: the public openTPU arithmetic.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Bits = Words | np.uint32
Integers = NDArray[np.int32]

SIGN = np.uint32(0x8000_0000)
MAGNITUDE = np.uint32(0x7FFF_FFFF)
FRACTION = np.uint32(0x007F_FFFF)
INFINITY = np.uint32(0x7F80_0000)
CANONICAL_NAN = np.uint32(0x7FC0_0000)
ONE = np.uint32(0x3F80_0000)
HALF = np.uint32(0x3F00_0000)
ONE_AND_A_HALF = np.uint32(0x3FC0_0000)
TWO = np.uint32(0x4000_0000)
CODES = np.uint32(0x42FE_0000)
"""127.0: the largest int8 code."""
CODES_RECIPROCAL = np.uint32(0x3C01_0204)
"""f32(1 / 127)."""
EXP2_COEFFICIENTS = tuple(
    np.uint32(bits)
    for bits in (
        0x3F800000,
        0x3F317218,
        0x3E75FDE9,
        0x3D63593E,
        0x3C1D8534,
        0x3AAFE2F6,
        0x3916C07C,
        0x37B3C7D6,
    )
)
LOG2_COEFFICIENTS = tuple(
    np.uint32(bits)
    for bits in (
        0x3FB8AA3B,
        0xBF38AA38,
        0x3EF639EB,
        0xBEB8AE27,
        0x3E9369C2,
        0xBE74ADF2,
        0x3E5CE48E,
        0xBE543E8E,
        0x3E00DB73,
    )
)
SQRT2_FRACTION = np.uint32(0x0035_04F3)
VECTOR_PARTIALS = 64
MATRIX_PARTIALS = 4


def bits_of(values: NDArray[np.float32]) -> Words:
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(np.shape(values))


def floats_of(bits: Bits) -> NDArray[np.float32]:
    return np.ascontiguousarray(bits, dtype=np.uint32).view(np.float32).reshape(np.shape(bits))


def exponent(bits: Bits) -> Integers:
    """The biased exponent field, 0..255."""
    return np.asarray(bits >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)


def is_nan(bits: Words) -> NDArray[np.bool_]:
    return (bits & MAGNITUDE) > INFINITY


def flush(bits: Bits) -> Words:
    """Denormals become zero of their sign; NaN keeps its bits."""
    return np.where(exponent(bits) == 0, bits & SIGN, bits)


def _rounded(result: NDArray[np.float32]) -> Words:
    # NumPy rounds with gradual underflow, so this flush is judged on the subnormal grid, as the contract asks.
    bits = bits_of(result)
    return np.where(is_nan(bits), CANONICAL_NAN, flush(bits))


def add(a: Bits, b: Bits) -> Words:
    with np.errstate(all="ignore"):
        return _rounded(floats_of(flush(a)) + floats_of(flush(b)))


def sub(a: Bits, b: Bits) -> Words:
    with np.errstate(all="ignore"):
        return _rounded(floats_of(flush(a)) - floats_of(flush(b)))


def mul(a: Bits, b: Bits) -> Words:
    with np.errstate(all="ignore"):
        return _rounded(floats_of(flush(a)) * floats_of(flush(b)))


def absolute(bits: Words) -> Words:
    return flush(bits) & MAGNITUDE


def order_key(bits: Words) -> Words:
    """Unsigned keys that sort like the total order -NaN < -inf < .. < -0 < +0 < .. < +inf < NaN of flushed bits."""
    flushed = flush(bits)
    return np.where(flushed & SIGN, ~flushed, flushed | SIGN)


def maximum(a: Words, b: Words) -> Words:
    return np.where(order_key(a) > order_key(b), flush(a), flush(b))


def minimum(a: Words, b: Words) -> Words:
    return np.where(order_key(b) > order_key(a), flush(a), flush(b))


def i2f(values: Integers) -> Words:
    """int32 to fp32 bits, round to nearest even."""
    return bits_of(values.astype(np.int32).astype(np.float32))


def f2i(bits: Words) -> Integers:
    """fp32 bits to int32, truncated to zero; |x| >= 2^31, infinities and NaN give 0x80000000."""
    fits = exponent(bits) < 127 + 31
    whole = np.trunc(floats_of(np.where(fits, bits, np.uint32(0))))
    return np.where(fits, whole.astype(np.int32), np.int32(-(1 << 31)))


def q8(bits: Words) -> NDArray[np.int8]:
    """Round half to even, clamp to -127..127; NaN gives 0."""
    values = floats_of(np.where(is_nan(bits), np.uint32(0), flush(bits)))
    return np.clip(np.rint(values), -127, 127).astype(np.int8)


def exp2(x: Words) -> Words:
    """2^x by a polynomial of degree 7 on the fraction; below -126 +0, from 128 on and for NaN +inf."""
    x = flush(x)
    values = floats_of(x)
    inside = (values >= -126) & (values < 128)
    whole = np.floor(np.where(inside, values, np.float32(0))).astype(np.int32)
    fraction = sub(np.where(inside, x, np.uint32(0)), i2f(whole))
    p = np.broadcast_to(EXP2_COEFFICIENTS[-1], np.shape(x))
    for coefficient in reversed(EXP2_COEFFICIENTS[:-1]):
        p = add(mul(p, fraction), coefficient)
    result = _add_to_exponent(p, whole)
    return np.where(inside, result, np.where(values < -126, np.uint32(0), INFINITY))


def exp2_sub(a: Words, b: Words) -> Words:
    """exp2(a - b), the difference rounded first."""
    return exp2(sub(a, b))


def recip(x: Words) -> Words:
    """1/x by two Newton steps on the significand; +-0 gives +0, |x| >= 2^126 and NaN zero of x's sign."""
    x = flush(x)
    a = ONE | (x & FRACTION)
    y = np.uint32(0x7EF3_11C3) - a
    for _ in range(2):
        y = mul(y, sub(TWO, mul(a, y)))
    y = add(mul(y, sub(ONE, mul(a, y))), y)
    result = _add_to_exponent(y, 127 - exponent(x)) | (x & SIGN)
    result = np.where(exponent(x) >= 253, x & SIGN, result)
    return np.where(exponent(x) == 0, np.uint32(0), result)


def rsqrt(x: Words) -> Words:
    """1/sqrt(x) by two Newton steps; a set sign bit, 0 and +inf give +0, NaN without sign the canonical NaN."""
    x = flush(x)
    field = exponent(x)
    shift = np.where(field <= 2, 4, np.where(field >= 250, -4, 0)).astype(np.int32)
    scaled = np.where((field == 0) | (field == 255), ONE, _add_to_exponent(x & MAGNITUDE, shift))
    y = np.uint32(0x5F37_59DF) - (scaled >> np.uint32(1))
    h = mul(HALF, scaled)
    for _ in range(2):
        y = mul(y, sub(ONE_AND_A_HALF, mul(h, mul(y, y))))
    y = add(mul(y, sub(HALF, mul(h, mul(y, y)))), y)
    result = np.where((field == 0) | (x & SIGN != 0) | (x == INFINITY), np.uint32(0), _add_to_exponent(y, shift // 2))
    return np.where(is_nan(x) & (x & SIGN == 0), CANONICAL_NAN, result)


def log2(x: Words) -> Words:
    """log2(x) by a polynomial of degree 9; +-0 gives -inf, x < 0 and NaN the canonical NaN, +inf itself."""
    x = flush(x)
    upper = (x & FRACTION) >= SQRT2_FRACTION
    e = exponent(x) - 127 + upper
    m = np.where(upper, np.uint32(126 << 23), np.uint32(127 << 23)) | (x & FRACTION)
    t = sub(m, ONE)
    q = np.broadcast_to(LOG2_COEFFICIENTS[-1], np.shape(x))
    for coefficient in reversed(LOG2_COEFFICIENTS[:-1]):
        q = add(mul(q, t), coefficient)
    result = np.where(x == INFINITY, INFINITY, add(mul(q, t), i2f(e)))
    result = np.where(is_nan(x) | (x & SIGN != 0), CANONICAL_NAN, result)
    return np.where(x & MAGNITUDE == 0, SIGN | INFINITY, result)


def _add_to_exponent(bits: Words, amount: Integers) -> Words:
    return bits + (amount.astype(np.int32) << 23).view(np.uint32)


def isum(values: Words, partials: int) -> Words:
    """Interleaved sum over the last axis, without padding.

    Partial q starts at +0 and adds elements q, q + partials, .. from left to right; then the upper half of the
    partials is added to the lower half until one is left.
    """
    sums = np.zeros((*values.shape[:-1], partials), np.uint32)
    for start in range(0, values.shape[-1], partials):
        addends = values[..., start : start + partials]
        count = addends.shape[-1]
        sums[..., :count] = add(sums[..., :count], addends)
    width = partials // 2
    while width:
        sums = add(sums[..., :width], sums[..., width:])
        width //= 2
    return sums[..., 0]


def vector_sum(values: Words) -> Words:
    """The vector unit's sum over the last axis: 64 partials, the row padded with explicit +0 addends."""
    missing = -values.shape[-1] % VECTOR_PARTIALS
    padding = np.zeros((*values.shape[:-1], missing), np.uint32)
    return isum(np.concatenate([values, padding], axis=-1), VECTOR_PARTIALS)


def matrix_sum(values: Words) -> Words:
    """The matrix unit's sum over the last axis: 4 partials, no padding."""
    return isum(values, MATRIX_PARTIALS)


class Quantized(NamedTuple):
    """int8 codes [.., C] and one scale (fp32 bits) [..] for each group."""

    codes: NDArray[np.int8]
    scales: Words


def quantize(values: Words) -> Quantized:
    """Quantize each group (the last axis) to int8 with one scale amax / 127.

    amax is the largest magnitude compared as an unsigned integer, so any NaN wins. The special cases (amax 0,
    infinite, NaN, so large that 1/amax is 0, so small that it is infinite) all follow from the arithmetic.
    """
    amax = np.max(flush(values) & MAGNITUDE, axis=-1)
    inverse = mul(CODES, recip(amax))
    return Quantized(q8(mul(values, inverse[..., None])), mul(amax, CODES_RECIPROCAL))
