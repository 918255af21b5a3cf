import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.program.rotation import Rotation

SIZES = [1, 2, 3, 95, 96, 128, 576, 896]


def random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_lengths_and_products_stay(size: int) -> None:
    rotation, a, b = Rotation(size), random(5, size), random(7, size)
    np.testing.assert_allclose(rotation.rows(a) @ rotation.rows(b).T, a @ b.T, atol=1e-4)


@pytest.mark.parametrize(("size", "width"), [(576, 64), (896, 64), (2048, 64), (96, 32), (95, 1)])
def test_a_single_large_channel_is_spread_over_its_group(size: int, width: int) -> None:
    values = np.zeros((1, size), np.float32)
    values[0, 0] = 1
    rotated = np.abs(Rotation(size).rows(values)[0])
    np.testing.assert_allclose(rotated[:width], width**-0.5, rtol=1e-6)
    assert not rotated[width:].any()


@pytest.mark.parametrize("size", SIZES)
def test_what_writes_and_what_reads_the_hidden_state_meet_in_the_new_basis(size: int) -> None:
    rotation, writes, reads, norm = Rotation(size), random(size, 9), random(4, size), random(1, size)[0]
    through = rotation.rows(reads, norm) @ rotation.columns(writes)
    np.testing.assert_allclose(rotation.rows(reads) @ rotation.columns(writes), reads @ writes, atol=1e-4)
    np.testing.assert_allclose(through, (reads * norm) @ writes, atol=1e-4)


def test_a_vector_is_rotated_as_a_row_is() -> None:
    values = random(3, 576)
    np.testing.assert_array_equal([Rotation(576).vector(row) for row in values], Rotation(576).rows(values))


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_16_bit_numbers_have_the_same_bits_in_every_order_of_summation(size: int) -> None:
    rotation, values = Rotation(size), random(64, size).astype(np.float16).astype(np.float32)
    columns = np.split(rotation.rows(np.eye(size, dtype=np.float32)).astype(np.float64) * rotation.width**0.5, size)
    backwards = np.zeros((64, size))
    for channel in reversed(range(size)):
        backwards += values[:, channel, None].astype(np.float64) * np.rint(columns[channel])
    np.testing.assert_array_equal(rotation.rows(values), (backwards * rotation.width**-0.5).astype(np.float32))


def test_the_number_of_rows_does_not_change_a_row() -> None:
    values = random(64, 576)
    whole = Rotation(576).rows(values)
    np.testing.assert_array_equal(np.concatenate([Rotation(576).rows(row[None]) for row in values]), whole)
