"""Which attention blocks and masks a segment needs where rows see a window of positions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npuserve.models.registry import model_facts
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.step_table import Segment, StepTable, visible_blocks
from npuserve.program.tmem import Shape
from tiny_checkpoint import tiny_config

SEGMENTS = st.builds(Segment, st.just(0), st.integers(0, 3000), st.integers(1, 64))
WINDOWS = st.integers(1, 1500)


def blocks_of(segment: Segment, window: int) -> tuple[int, int, int]:
    """First, full and last."""
    blocks = visible_blocks(np.array([segment.position]), np.array([segment.num_rows]), window)
    return int(blocks.first[0]), int(blocks.full[0]), int(blocks.last[0])


@given(SEGMENTS, WINDOWS)
def test_blocks_without_a_mask_are_seen_whole_and_none_that_is_seen_is_left_out(segment: Segment, window: int) -> None:
    first, full, last = blocks_of(segment, window)
    end = (segment.position + segment.num_rows - 1) // 256 + 1
    assert 0 <= first <= full <= last <= end
    assert full - first <= (1 if segment.num_rows == 1 else 2)
    assert end - last <= (1 if segment.num_rows == 1 else 2)
    for position in range(segment.position, segment.position + segment.num_rows):
        begin = max(0, position - window + 1)
        assert first * 256 <= begin
        if full < last:
            assert begin <= full * 256
            assert last * 256 <= position + 1


@given(SEGMENTS, st.integers(1, 700))
def test_masks_show_just_the_positions_of_the_window(segment: Segment, window: int) -> None:
    config = tiny_config("gemma4_text", sliding_window=window, global_head_dim=32, hidden_size_per_layer_input=0)
    geometry = Geometry(model_facts(config), 3100)
    table = StepTable(DramLayout(geometry, 1, 64), np.zeros((300, 96), np.float32))
    positions = np.arange(segment.position, segment.position + segment.num_rows)
    shape = Shape(segment.num_rows, 0, 0)
    masks_from = np.full(len(positions), segment.full_blocks * 256)
    data = table.rows(positions * 0, positions, masks_from, shape, [segment])
    records = data.view(np.float32).reshape(len(positions), -1)
    (first, full, last), last_two = blocks_of(segment, window), records[:, -1024:].reshape(len(positions), 2, 512)
    for part, begin, end in ((0, first, full), (1, last, last + 2)):
        seen = np.arange(begin * 256, end * 256)
        expected = (seen <= positions[:, None]) & (seen > positions[:, None] - window)
        np.testing.assert_array_equal(last_two[:, part, : len(seen)] == 0, expected)
