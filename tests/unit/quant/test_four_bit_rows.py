"""Rows of 4-bit checkpoints in our own formats: bit for bit, or rounded where the format ends."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from four_bit_checkpoint import Quantized, drawn, exact_values
from npuserve.quant import fp4, nibbles
from npuserve.quant.formats import FORMATS, WeightFormat
from npuserve.quant.four_bit_rows import FourBitKind, FourBitRows, TakenOver, is_tensor_scale

FP4, NVFP4 = FORMATS["fp4"], FORMATS["nvfp4"]
WIDTHS = (32, 96, 128, 576, 640)


def rows_of(quantized: Quantized) -> FourBitRows:
    kind = FourBitKind[quantized.kind.upper()]
    scales = np.full(len(quantized.codes), quantized.tensor_scale, np.float32)
    return FourBitRows(kind, nibbles.join(quantized.codes), quantized.scales, scales)


def times(given: FourBitRows, factors: NDArray[np.float32]) -> FourBitRows:
    return replace(given, row_scales=given.row_scales * factors)


def taken(given: FourBitRows, kept: WeightFormat) -> TakenOver:
    return kept.take_over[given.kind](given)


def values_of(result: TakenOver, kept: WeightFormat, columns: int) -> NDArray[np.float64]:
    return exact_values(kept, result.rows, result.scales, columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_nvfp4_is_bit_for_bit_what_the_checkpoint_says(columns: int) -> None:
    quantized = drawn(np.random.default_rng(columns), 7, columns, "nvfp4")
    result = taken(rows_of(quantized), NVFP4)
    np.testing.assert_array_equal(values_of(result, NVFP4, columns), quantized.values)
    assert result.num_rounded == 0
    assert not result.rows[:, columns // 2 :].any()
    blocks = -(-columns // 128)
    assert result.rows.shape == (7, NVFP4.row_bytes(blocks))
    assert result.scales.shape == (7, NVFP4.scale_words(blocks))


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(("kept", "span"), [(FP4, 3), (NVFP4, 17)], ids=["fp4", "nvfp4"])
def test_mxfp4_is_bit_for_bit_what_the_checkpoint_says(columns: int, kept: WeightFormat, span: int) -> None:
    quantized = drawn(np.random.default_rng(columns), 7, columns, "mxfp4", span)
    result = taken(rows_of(quantized), kept)
    np.testing.assert_array_equal(values_of(result, kept, columns), quantized.values)
    assert result.num_rounded == 0
    assert result.rows.shape == (7, kept.row_bytes(-(-columns // 128)))


def test_numbers_of_the_checkpoint_itself_are_those_of_the_tables() -> None:
    for kind in ("nvfp4", "mxfp4"):
        quantized = drawn(np.random.default_rng(3), 5, 96, kind, span=40)
        np.testing.assert_allclose(rows_of(quantized).dequantized(), quantized.values, rtol=2**-23)


def test_blocks_of_zeros_may_have_any_scale() -> None:
    quantized = drawn(np.random.default_rng(4), 3, 256, "mxfp4", span=2)
    quantized.codes[:, 32:64] = 8
    quantized.codes[1] = 0
    quantized.scales[:, 1] = 0
    for kept in (FP4, NVFP4):
        result = taken(rows_of(quantized), kept)
        assert result.num_rounded == 0
        np.testing.assert_array_equal(values_of(result, kept, 256), quantized.values)
    assert fp4.rows_with_spread(quantized.scales).tolist() == [0, 1, 2]
    assert fp4.is_exact(rows_of(quantized))


def test_fp4_packs_only_blocks_that_span_more_than_its_multipliers() -> None:
    quantized = drawn(np.random.default_rng(5), 4, 320, "mxfp4", span=0)
    quantized.scales[2, 5] -= 4
    given = rows_of(quantized)
    assert fp4.rows_with_spread(quantized.scales).tolist() == [2]
    assert not fp4.is_exact(given)
    result = taken(given, FP4)
    assert result.num_rounded == 1
    values = values_of(result, FP4, 320)
    changed = values != quantized.values
    assert changed[2, 128:256].any()
    changed[2, 128:256] = False
    assert not changed.any()
    np.testing.assert_allclose(values[2, 128:256], quantized.values[2, 128:256], atol=np.abs(values[2]).max() / 12)


def test_nvfp4_rounds_only_blocks_far_below_the_largest_of_their_row() -> None:
    quantized = drawn(np.random.default_rng(6), 4, 320, "mxfp4", span=17)
    quantized.scales[:, 0] = 118
    quantized.scales[1, 3] = 118 - 19
    result = taken(rows_of(quantized), NVFP4)
    assert result.num_rounded == 1
    values = values_of(result, NVFP4, 320)
    np.testing.assert_allclose(values, quantized.values, atol=2.0 ** (118 - 127 - 17) / 4)
    same = values == quantized.values
    same[1, 96:128] = True
    assert same.all()


def test_a_factor_of_rows_changes_row_scales_alone() -> None:
    factors = np.array([0.18, 1, 0.25], np.float32)
    for kind, kept in (("nvfp4", NVFP4), ("mxfp4", NVFP4)):
        given = rows_of(drawn(np.random.default_rng(7), 3, 128, kind))
        plain, scaled = taken(given, kept), taken(times(given, factors), kept)
        np.testing.assert_array_equal(plain.rows, scaled.rows)
        np.testing.assert_array_equal(plain.scales[:, :-2], scaled.scales[:, :-2])
        expected = plain.scales[:, -2].view(np.float32) * factors
        np.testing.assert_allclose(scaled.scales[:, -2].view(np.float32), expected, rtol=2**-23)
    result = taken(times(given, factors), FP4)
    assert result.num_rounded == 1
    scale = FP4.unpack(result.rows, result.scales, 128)[0] / np.where(given.dequantized()[0], given.dequantized()[0], 1)
    np.testing.assert_allclose(scale[scale != 0], 0.18, rtol=2**-8)


def test_numbers_too_small_for_fp32_scales_become_zero() -> None:
    quantized = drawn(np.random.default_rng(8), 2, 128, "mxfp4", span=0)
    quantized.scales[:] = 1
    for kept in (FP4, NVFP4):
        result = taken(rows_of(quantized), kept)
        assert result.num_rounded > 0
        np.testing.assert_allclose(values_of(result, kept, 128), 0, atol=1e-30)


def test_formats_take_over_what_they_can_hold() -> None:
    both = {FourBitKind.NVFP4, FourBitKind.MXFP4}
    assert {name: set(kept.take_over) for name, kept in FORMATS.items()} == {
        "int8": set(),
        "fp4": {FourBitKind.MXFP4},
        "int4": set(),
        "nvfp4": both,
    }


@pytest.mark.parametrize(
    ("scale", "is_one"),
    [(0.0, True), (1e-4, True), (-2.0, True), (float("nan"), False), (float("inf"), False), (1e-38, False)],
)
def test_scales_of_tensors_are_finite_and_normal(scale: float, is_one: bool) -> None:
    assert is_tensor_scale(scale) is is_one
