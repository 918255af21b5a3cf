"""int4, fp4 and nvfp4: layouts by hand, errors within a step, multipliers of least error by exhaustive search."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from npuserve.errors import ConfigError
from npuserve.quant import e2m1, e4m3, fp4, int4, nibbles, nvfp4, two_level
from npuserve.quant.formats import FORMATS, WeightFormat, weight_format

MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 300)),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)
TWO_LEVEL = pytest.mark.parametrize("module", [int4, fp4], ids=["int4", "fp4"])
ALL = pytest.mark.parametrize("chosen", FORMATS.values(), ids=FORMATS.keys())
RNG = np.random.default_rng(5)


def normal(*shape: int) -> NDArray[np.float32]:
    return (0.02 * RNG.standard_normal(shape)).astype(np.float32)


def relative_error(chosen: WeightFormat, weights: NDArray[np.float32]) -> float:
    found = chosen.unpack(*chosen.pack(weights), weights.shape[1])
    return float(np.square(found - weights).sum() / np.square(weights).sum())


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0), (1.5, 2), (2.5, 2), (4.9, 4), (5.0, 4), (5.1, 6), (7.0, 8), (9.9, 8), (10.0, 8), (10.1, 12), (12, 12)],
)
def test_e2m1_rounds_to_the_nearest_ties_to_the_even_code(value: float, expected: int) -> None:
    values = np.array([[value, -value]], np.float32)
    out = np.empty_like(values)
    e2m1.rounded(values, np.empty_like(values), out)
    assert out.tolist() == [[expected, -expected]]


def test_e2m1_codes_stand_for_their_integers() -> None:
    integers = np.array([0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12], np.float32)
    assert e2m1.codes(integers).tolist() == [*range(8), 0, *range(9, 16)]


def test_e4m3_has_the_values_of_its_definition() -> None:
    assert [float(e4m3.VALUES[code]) for code in (0, 1, 8, 0x38, 0x7E, 0xB8)] == [0, 2**-9, 2**-6, 1, 448, -1]
    assert np.isnan(e4m3.VALUES[[0x7F, 0xFF]]).all()


def test_e4m3_codes_are_the_nearest_and_ties_go_to_the_even_code() -> None:
    magnitudes = e4m3.VALUES[:0x7F]
    np.testing.assert_array_equal(e4m3.codes(magnitudes), np.arange(0x7F))
    middles = ((magnitudes[1:] + magnitudes[:-1]) / 2).astype(np.float32)
    np.testing.assert_array_equal(e4m3.codes(middles), (np.arange(0x7E) + 1) // 2 * 2)
    np.testing.assert_array_equal(e4m3.codes(np.nextafter(middles, np.float32(0))), np.arange(0x7E))
    assert e4m3.codes(np.array([1e9], np.float32)).tolist() == [0x7E]


def test_an_even_element_is_in_the_low_half_of_its_byte() -> None:
    codes = np.array([[1, 2, 15, 0]], np.uint8)
    assert nibbles.join(codes).tolist() == [[0x21, 0x0F]]
    assert nibbles.split(nibbles.join(codes)).tolist() == codes.tolist()


def test_an_int4_block_is_laid_out_as_the_machine_reads_it() -> None:
    """Sub-blocks whose largest magnitude is 7 times 15, 5, 1 and 0 halves: multipliers 15, 5, 1 and a scale of 1/2."""
    weights = np.zeros((1, 128), np.float32)
    weights[0, :16] = np.arange(-8, 8) * 7.5
    weights[0, 32:48] = np.arange(-8, 8) * 2.5
    weights[0, 64:80] = np.arange(-8, 8) * 0.5
    weights[0, 0] = weights[0, 32] = weights[0, 64] = 0
    rows, scales = int4.pack(weights)
    assert rows.shape == (1, 128)
    assert rows[0, :8].tolist() == [0x90, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76]
    assert not rows[0, 64:].any()
    word = int(scales[0, 0])
    assert word & 0xFFFF == 0x3F00
    assert [word >> shift & 15 for shift in (16, 20, 24)] == [15, 5, 1]
    np.testing.assert_array_equal(int4.unpack(rows, scales, 128), weights)


def test_fp4_blocks_of_representable_values_come_back_exactly() -> None:
    signs = RNG.choice([-1, 1], (6, 256))
    weights = signs * RNG.choice([0, 1, 2, 3, 4, 6, 8, 12], (6, 256)) * np.float32(2.0**-5)
    weights[:, ::32] = 12 * 2.0**-5
    weights = (weights.reshape(6, 2, 4, 32) * np.array([13, 7, 5, 1])[:, None]).reshape(6, 256).astype(np.float32)
    np.testing.assert_array_equal(fp4.unpack(*fp4.pack(weights), 256), weights)


@TWO_LEVEL
@given(weights=MATRICES)
def test_least_squares_is_no_worse_than_half_a_step_each(module: ModuleType, weights: NDArray[np.float32]) -> None:
    """A step where the largest of a block is on the largest integer; E2M1's widest step is 4 of 12."""
    rows, scales = module.pack(weights)
    padded = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 128)))
    error = np.square(module.unpack(rows, scales) - padded).reshape(len(weights), -1, 4, 32).mean(axis=3)
    largest = np.abs(padded).reshape(len(weights), -1, 128).max(axis=2)[..., None]
    assert np.all(np.sqrt(error) <= largest * (0.51 / 7 if module is int4 else 2.03 / 12) + 1e-30)


@TWO_LEVEL
def test_no_other_multiplier_would_have_less_error(module: ModuleType) -> None:
    weights = normal(5, 256)
    rows, scales = module.pack(weights)
    steps = two_level.block_scales(scales)[..., None] * np.arange(1, 16, dtype=np.float32)
    values = weights.reshape(5, 2, 4, 1, 32)
    integers = np.unique(module.GRID.integers).astype(np.float32)
    grid = integers * steps[:, :, None, :, None]
    nearest = np.abs(values[..., None] - grid[..., None, :]).min(axis=-1)
    least = np.square(nearest).sum(axis=-1).min(axis=-1)
    found = np.square(module.unpack(rows, scales) - weights).reshape(5, 2, 4, 32).sum(axis=-1)
    np.testing.assert_allclose(found, least, rtol=1e-3)


@TWO_LEVEL
def test_multipliers_are_at_least_one(module: ModuleType) -> None:
    _, scales = module.pack(normal(8, 512) * np.geomspace(1e-4, 1, 512, dtype=np.float32))
    assert two_level.multipliers(scales).min() >= 1


@ALL
@pytest.mark.parametrize("columns", [1, 127, 128, 129, 576, 640])
def test_rows_and_scales_have_the_sizes_that_the_format_names(chosen: WeightFormat, columns: int) -> None:
    blocks = -(-columns // 128)
    weights = np.ones((3, columns), np.float32)
    rows, scales = chosen.pack(weights)
    assert rows.shape == (3, chosen.row_bytes(blocks))
    assert scales.shape == (3, chosen.scale_words(blocks))
    assert rows.dtype.itemsize == 1
    assert scales.dtype.itemsize == 4
    assert rows.shape[1] % 128 == 0
    np.testing.assert_allclose(chosen.unpack(rows, scales, columns), weights, rtol=0.005)


@ALL
def test_packing_in_parts_is_packing_at_once(chosen: WeightFormat) -> None:
    weights = normal(300, 384)
    weights[::100, 0] = 1  # nvfp4 takes its tensor scale from the rows of one call
    at_once = chosen.unpack(*chosen.pack(weights), 384)
    parts = [chosen.unpack(*chosen.pack(weights[start : start + 100]), 384) for start in range(0, 300, 100)]
    np.testing.assert_array_equal(at_once, np.concatenate(parts))


@ALL
def test_zeros_stay_zeros_beside_values(chosen: WeightFormat) -> None:
    weights = np.zeros((4, 384), np.float32)
    np.testing.assert_array_equal(chosen.unpack(*chosen.pack(weights), 384), weights)
    weights[1, 130:200] = 3
    found = chosen.unpack(*chosen.pack(weights), 384)
    assert not found[weights == 0].any()
    np.testing.assert_allclose(found[1, 130:200], 3, rtol=0.005)


@ALL
def test_the_largest_numbers_do_not_overflow(chosen: WeightFormat) -> None:
    weights = np.full((2, 128), 3e38, np.float32)
    np.testing.assert_allclose(chosen.unpack(*chosen.pack(weights), 128), weights, rtol=0.01)


def test_errors_on_normal_weights_are_what_the_formats_are_known_for() -> None:
    weights = normal(256, 1024)
    errors = {name: relative_error(chosen, weights) for name, chosen in FORMATS.items()}
    assert errors["int8"] < 5e-5
    assert 0.0065 < errors["nvfp4"] < 0.0072
    assert 0.0075 < errors["int4"] < 0.0080
    assert 0.0082 < errors["fp4"] < 0.0087


def test_nvfp4_rows_carry_scales_from_the_lowest_byte_and_their_row_scale() -> None:
    weights = np.repeat(np.array([448, 224, 2**-6, 0, 1, 2, 4, 8], np.float32), 16)[None] * 6
    rows, scales = nvfp4.pack(weights)
    assert scales.view(np.uint8)[0, :8].tolist() == [0x7E, 0x76, 0x08, 0, 0x38, 0x40, 0x48, 0x50]
    assert scales[0, 2:].tolist() == [0x3F00_0000, 0]
    assert set(rows[0, :64].tolist()) == {0x77, 0}
    np.testing.assert_array_equal(nvfp4.unpack(rows, scales), weights)


def test_nvfp4_checkpoints_are_taken_over_exactly() -> None:
    codes = RNG.integers(0, 256, (5, 72), np.uint8)
    sub_scales = RNG.integers(0, 0x7F, (5, 9), np.uint8)
    tensor_scale = np.array([0.5, 0.25, 1, 3, 0.1], np.float32)
    rows, scales = nvfp4.assemble(codes, sub_scales, tensor_scale)
    values = e2m1.VALUES[nibbles.split(codes)].astype(np.float32) / 2
    expected = values * np.repeat(e4m3.VALUES[sub_scales], 16, axis=1) * tensor_scale[:, None]
    np.testing.assert_array_equal(nvfp4.unpack(rows, scales, 144), expected)


def test_a_paired_row_of_scales_lies_on_multiples_of_eight_bytes() -> None:
    fp4_format = weight_format("fp4")
    assert [fp4_format.scale_stride(blocks, paired=True) for blocks in (1, 2, 5)] == [8, 8, 24]
    assert [fp4_format.scale_stride(blocks) for blocks in (1, 2, 5)] == [4, 8, 20]
    assert weight_format("nvfp4").scale_stride(5) == 48


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"weight format 'int9' is not known; there are int8, fp4, int4, nvfp4"):
        weight_format("int9")
