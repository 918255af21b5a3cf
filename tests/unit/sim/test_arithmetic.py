"""Scalar arithmetic against the published vectors, check values and rulings."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.sim import arithmetic
from npuserve.sim.arithmetic import Words

VECTORS = np.load(Path(__file__).parents[2] / "data" / "elementwise.npz")
UNARY = {
    "exp2": arithmetic.exp2,
    "recip": arithmetic.recip,
    "rsqrt": arithmetic.rsqrt,
    "log2": arithmetic.log2,
    "copy": arithmetic.flush,
    "abs": arithmetic.absolute,
}
BINARY = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "max": arithmetic.maximum,
    "min": arithmetic.minimum,
    "exp2sub": arithmetic.exp2_sub,
}
NAN, NEGATIVE_NAN, INF, NEGATIVE_INF = 0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000
PAYLOAD_NAN, NEGATIVE_PAYLOAD_NAN = 0x7F812345, 0xFF812345
DENORMAL, NEGATIVE_DENORMAL, SMALLEST = 0x007FFFFF, 0x807FFFFF, 0x00800000
NEGATIVE_ZERO = 0x80000000


def word(bits: int) -> Words:
    return np.array([bits], np.uint32)


def real(value: float) -> Words:
    return np.array([value], np.float32).view(np.uint32)


def same(got: NDArray[np.generic], name: str) -> bool:
    expected = VECTORS[f"{name}/out"]
    return np.array_equal(np.ascontiguousarray(got).view(expected.dtype), expected)


@pytest.mark.parametrize("name", UNARY)
def test_function_of_one_operand_matches_its_vectors(name: str) -> None:
    assert same(UNARY[name](VECTORS[f"{name}/a"]), name)


@pytest.mark.parametrize("name", BINARY)
def test_function_of_two_operands_matches_its_vectors(name: str) -> None:
    assert same(BINARY[name](VECTORS[f"{name}/a"], VECTORS[f"{name}/b"]), name)


def test_outer_is_two_rounded_products_and_a_rounded_sum() -> None:
    a, b, c, d = (VECTORS[f"outer/{letter}"] for letter in "abcd")
    assert same(arithmetic.add(arithmetic.mul(a, d), arithmetic.mul(b, c)), "outer")


def test_conversions_match_their_vectors() -> None:
    assert same(arithmetic.i2f(VECTORS["i2f/a"].view(np.int32)), "i2f")
    assert same(arithmetic.f2i(VECTORS["f2i/a"]), "f2i")
    assert same(arithmetic.q8(VECTORS["q8/a"]).astype(np.int32), "q8")


def test_quantized_groups_match_their_vectors() -> None:
    codes, scales = arithmetic.quantize(VECTORS["quantize/a"])
    assert np.array_equal(codes, VECTORS["quantize/q"])
    assert np.array_equal(scales, VECTORS["quantize/s"])


SUM_NAMES = sorted({name.rpartition("/")[0] for name in VECTORS.files if name.startswith("isum")})


@pytest.mark.parametrize("name", SUM_NAMES)
def test_interleaved_sums_match_their_vectors(name: str) -> None:
    total = arithmetic.vector_sum if name.startswith("isum64") else arithmetic.matrix_sum
    assert same(total(VECTORS[f"{name}/a"]), name)


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (arithmetic.recip, 1.0, 0x3F800000),
        (arithmetic.recip, 127.0, 0x3C010204),
        (arithmetic.rsqrt, 1.0, 0x3F800000),
        (arithmetic.rsqrt, 2.0, 0x3F3504F3),
        (arithmetic.exp2, 0.999999, 0x3FFFFFF4),
        (arithmetic.exp2, -0.3, 0x3F4FEFC6),
    ],
)
def test_published_check_values(function: Callable[[Words], Words], argument: float, expected: int) -> None:
    assert function(real(argument)).tolist() == [expected]


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (arithmetic.exp2, NAN, INF),
        (arithmetic.exp2, NEGATIVE_INF, 0),
        (arithmetic.exp2, NEGATIVE_DENORMAL, 0x3F800000),
        (arithmetic.recip, NEGATIVE_ZERO, 0),
        (arithmetic.recip, NEGATIVE_DENORMAL, 0),
        (arithmetic.recip, NEGATIVE_PAYLOAD_NAN, NEGATIVE_ZERO),
        (arithmetic.recip, 0xFE800000, NEGATIVE_ZERO),
        (arithmetic.rsqrt, NEGATIVE_NAN, 0),
        (arithmetic.rsqrt, PAYLOAD_NAN, NAN),
        (arithmetic.rsqrt, INF, 0),
        (arithmetic.rsqrt, SMALLEST, 0x5F000000),
        (arithmetic.log2, NEGATIVE_DENORMAL, NEGATIVE_INF),
        (arithmetic.log2, PAYLOAD_NAN, NAN),
        (arithmetic.log2, INF, INF),
        (arithmetic.absolute, NEGATIVE_PAYLOAD_NAN, PAYLOAD_NAN),
        (arithmetic.absolute, NEGATIVE_DENORMAL, 0),
        (arithmetic.flush, NEGATIVE_PAYLOAD_NAN, NEGATIVE_PAYLOAD_NAN),
        (arithmetic.flush, NEGATIVE_DENORMAL, NEGATIVE_ZERO),
    ],
)
def test_special_operands(function: Callable[[Words], Words], argument: int, expected: int) -> None:
    assert [hex(bits) for bits in function(word(argument))] == [hex(expected)]


def test_product_that_rounds_up_to_the_smallest_normal_is_kept() -> None:
    just_below_one = word(0x3F7FFFFF)
    # (1 - 2^-24) * 2^-126 lies half way between the largest denormal and 2^-126, and ties go to even.
    assert arithmetic.mul(just_below_one, word(SMALLEST)).tolist() == [SMALLEST]
    assert arithmetic.mul(word(0x3F7FFFFE), word(SMALLEST)).tolist() == [0]


def test_denormal_results_become_zero_of_their_sign() -> None:
    assert arithmetic.sub(word(SMALLEST), word(SMALLEST + 1)).tolist() == [NEGATIVE_ZERO]


def test_total_order_puts_nan_outside_of_infinity_and_orders_payloads() -> None:
    ascending = [0xFFC00001, 0xFFC00000, 0xFF800000, 0xBF800000, 0x80000000, 0, 0x3F800000, 0x7F800000, 0x7F800001]
    words = np.array(ascending, np.uint32)
    assert np.array_equal(arithmetic.maximum(words[:-1], words[1:]), words[1:])
    assert np.array_equal(arithmetic.minimum(words[:-1], words[1:]), words[:-1])


def test_float_to_int_saturates_to_the_most_negative_number() -> None:
    outside = np.array([0x4F000000, INF, NAN, NEGATIVE_INF, 0xCF000000], np.uint32)
    assert arithmetic.f2i(outside).tolist() == [-(1 << 31)] * 5
    assert arithmetic.f2i(np.array([2147483520.0, -1.9, 0.99], np.float32).view(np.uint32)).tolist() == [
        2147483520,
        -1,
        0,
    ]


def test_padding_turns_negative_zero_partials_into_positive_ones() -> None:
    # Each of the 64 partials is smallest - 1.00..01 * smallest: a denormal below zero, flushed to -0.
    row = [SMALLEST] * 64 + [SMALLEST + 1 | NEGATIVE_ZERO] * 64
    longer = np.array([[*row, NEGATIVE_ZERO]], np.uint32)
    assert arithmetic.vector_sum(np.array([row], np.uint32)).tolist() == [NEGATIVE_ZERO]
    assert arithmetic.isum(longer, 64).tolist() == [NEGATIVE_ZERO]
    assert arithmetic.vector_sum(longer).tolist() == [0]


@pytest.mark.parametrize(
    ("largest", "scale", "codes"),
    [
        (0, 0, [0, 0]),
        (NAN, NAN, [0, 0]),
        (INF, INF, [0, 0]),
        (0x7E800000, 0x7B010204, [0, 0]),
        (SMALLEST, 0, [127, 0]),
    ],
    ids=["zero", "nan", "infinite", "reciprocal is zero", "reciprocal is infinite"],
)
def test_groups_at_the_edge_quantize_by_the_rulings(largest: int, scale: int, codes: list[int]) -> None:
    group = np.array([[largest, 0]], np.uint32)
    quantized = arithmetic.quantize(group)
    assert (quantized.codes[0].tolist(), hex(quantized.scales[0])) == (codes, hex(scale))
