import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.models.registry import model_facts
from npuserve.program.dram import WORDS_PER_SEGMENT, DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.kernels.registers import SegmentWord
from npuserve.program.rotation import Rotation
from npuserve.program.step_table import Segment, StepTable, segments_of
from npuserve.program.tmem import Shape
from tiny_checkpoint import tiny_config

DRAM = DramLayout(Geometry(model_facts(tiny_config()), 700), num_slots=3, max_rows=8)
HIDDEN, HEAD_DIM = 128, 32


def rows_at(*places: tuple[int, int]) -> list[Row]:
    return [Row(slot, position, 0, True) for slot, position in places]


def test_rows_are_grouped_by_slot() -> None:
    rows = rows_at((2, 5), (0, 7), (0, 8), (0, 9), (1, 0))
    assert segments_of(rows) == [Segment(2, 5, 1), Segment(0, 7, 3), Segment(1, 0, 1)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows_at((0, 4), (0, 6)), "slot 0: position 6 does not follow"),
        (rows_at((0, 4), (0, 4)), "slot 0: position 4 does not follow"),
        (rows_at((0, 4), (0, 3)), "slot 0: position 3 does not follow"),
        (rows_at((0, 4), (1, 0), (0, 5)), "do not stand together"),
    ],
)
def test_rows_that_are_no_segments_are_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segments_of(rows)


@given(st.integers(0, 3000), st.integers(1, 64))
def test_full_blocks_are_seen_whole_by_every_row_and_masked_ones_reach_the_last(position: int, num_rows: int) -> None:
    segment = Segment(0, position, num_rows)
    last = position + num_rows - 1
    assert segment.full_blocks * 256 <= position + 1 < (segment.full_blocks + 1) * 256
    blocks = segment.full_blocks + segment.masked_blocks
    assert (blocks - 1) * 256 <= last < blocks * 256
    assert segment.masked_blocks <= (1 if num_rows == 1 else 2)


def table(dtype: type[np.generic] = np.float32) -> tuple[StepTable, NDArray[np.generic]]:
    embedding = np.random.default_rng(0).standard_normal((300, 96)).astype(dtype)
    return StepTable(DRAM, embedding), embedding


def records(
    step_table: StepTable, tokens: list[int], positions: list[int], masks_from: list[int], shape: Shape
) -> NDArray[np.float32]:
    data = step_table.rows(np.array(tokens), np.array(positions), np.array(masks_from), shape)
    assert data.dtype == np.uint8
    return data.view(np.float32).reshape(len(tokens), -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_record_begins_with_the_embedding_and_zeros(dtype: type[np.generic]) -> None:
    step_table, embedding = table(dtype)
    rows = records(step_table, [7, 299], [0, 1], [0, 0], Shape(2, 0, 2))
    np.testing.assert_array_equal(rows[:, :96], Rotation(96).rows(embedding[[7, 299]].astype(np.float32)))
    assert not rows[:, 96:HIDDEN].any()


def test_a_record_has_doubled_cosines_and_signed_sines() -> None:
    rows = records(table()[0], [0], [650], [512], Shape(0, 1, 1))
    angles = 650 * DRAM.geometry.facts.inverse_frequencies
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected = np.concatenate([cosines, cosines, -sines, sines])
    np.testing.assert_array_equal(rows[0, HIDDEN : HIDDEN + 2 * HEAD_DIM], expected)


@pytest.mark.parametrize(
    ("positions", "shape", "masks_from", "columns"),
    [
        ([0, 1, 2], Shape(3, 0, 3), [0, 0, 0], 512),
        ([254, 255, 256, 257], Shape(4, 0, 4), [0, 0, 0, 0], 512),
        ([255, 256], Shape(2, 0, 2), [256, 256], 512),
        ([3, 4, 511], Shape(2, 1, 3), [0, 0, 512], 512),
        ([300], Shape(0, 1, 1), [256], 256),
        ([255], Shape(0, 1, 1), [256], 256),
    ],
)
def test_a_mask_hides_just_the_positions_above_the_row(
    positions: list[int], shape: Shape, masks_from: list[int], columns: int
) -> None:
    mask = records(table()[0], [0] * len(positions), positions, masks_from, shape)[:, HIDDEN + 2 * HEAD_DIM :]
    assert mask.shape == (len(positions), columns)
    for row, position, first in zip(mask, positions, masks_from, strict=True):
        visible = np.arange(first, first + columns) <= position
        np.testing.assert_array_equal(row[visible].view(np.uint32), 0x8000_0000)
        assert np.all(np.isneginf(row[~visible]))


def segment_words(segments: list[Segment]) -> NDArray[np.uint32]:
    data = table()[0].segments(segments)
    return data.view(np.uint32).reshape(DRAM.geometry.facts.num_layers, len(segments), WORDS_PER_SEGMENT)


def test_segment_words_point_into_the_slot_and_layer() -> None:
    words = segment_words([Segment(1, 300, 5), Segment(2, 0, 1)])
    kv = DRAM.kv
    for layer in range(2):
        base = DRAM.slots + DRAM.slot_stride + layer * kv.stride
        assert words[layer, 0, SegmentWord.KEYS] == base
        assert words[layer, 0, SegmentWord.VALUES] == base + kv.values
        assert words[layer, 0, SegmentWord.WRITE_KEYS] == base + 300 * kv.k_row
        assert words[layer, 0, SegmentWord.WRITE_KEY_SCALES] == base + kv.k_scales + 300 * kv.k_scale_row
        assert words[layer, 0, SegmentWord.WRITE_VALUES] == base + kv.values + 300
        assert words[layer, 0, SegmentWord.WRITE_VALUE_SCALES] == base + kv.v_scales + 300 * 4
        assert words[layer, 0, SegmentWord.FULL_BLOCKS] == 1
        assert words[layer, 0, SegmentWord.MASKED_BLOCKS] == 1
        assert words[layer, 1, SegmentWord.WRITE_KEYS] == base + DRAM.slot_stride


def test_counts_are_the_same_in_every_layer() -> None:
    words = segment_words([Segment(0, 250, 10)])
    assert words[:, 0, SegmentWord.FULL_BLOCKS].tolist() == [0, 0]
    assert words[:, 0, SegmentWord.MASKED_BLOCKS].tolist() == [2, 2]
