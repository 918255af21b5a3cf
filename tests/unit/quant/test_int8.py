import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npuserve.quant import int8

MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 300)),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


@given(MATRICES)
def test_an_error_is_at_most_half_a_step_of_its_block(weights: np.ndarray) -> None:
    codes, scales = int8.pack(weights)
    error = np.abs(int8.unpack(codes, scales, weights.shape[1]) - weights)
    steps = np.repeat(scales, int8.BLOCK, axis=1)[:, : weights.shape[1]]
    assert np.all(error <= steps * 0.5001)


@given(MATRICES)
def test_the_largest_of_a_block_gets_code_127(weights: np.ndarray) -> None:
    codes, scales = int8.pack(weights)
    largest = np.abs(codes.reshape(*scales.shape, int8.BLOCK)).max(axis=2)
    np.testing.assert_array_equal(largest, np.where(scales == 0, 0, 127))


def test_a_scale_is_the_largest_magnitude_times_the_constant_of_the_device() -> None:
    weights = np.array([[0.5, -3.7], [1e-3, 0.0]], np.float32)
    _, scales = int8.pack(weights)
    constant = np.array(0x3C010204, np.uint32).view(np.float32)
    np.testing.assert_array_equal(scales, np.array([[3.7], [1e-3]], np.float32) * constant)


def test_codes_round_half_to_even() -> None:
    weights = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    scale = np.array(0x3C010204, np.uint32).view(np.float32) * np.float32(127)
    codes, _ = int8.pack(weights * scale)
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_a_block_of_zeros_has_scale_zero_and_stays_zero() -> None:
    weights = np.zeros((2, 256), np.float32)
    weights[0, 128:] = 1
    codes, scales = int8.pack(weights)
    assert scales[1].tolist() == [0, 0]
    assert scales[0, 0] == 0
    np.testing.assert_array_equal(int8.unpack(codes, scales, 256), weights)


@pytest.mark.parametrize(("columns", "blocks"), [(1, 1), (127, 1), (128, 1), (129, 2), (576, 5)])
def test_rows_are_padded_with_zeros_to_whole_blocks(columns: int, blocks: int) -> None:
    codes, scales = int8.pack(np.ones((3, columns), np.float32))
    assert codes.shape == (3, blocks * 128)
    assert scales.shape == (3, blocks)
    assert codes.dtype == np.int8
    assert not codes[:, columns:].any()
    assert int8.num_blocks(columns) == blocks
    assert int8.unpack(codes, scales, columns).shape == (3, columns)
