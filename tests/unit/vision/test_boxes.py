"""Letterbox, suppression and what goes into a network."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.vision.letterbox import letterbox
from npuserve.vision.network import InputForm
from npuserve.vision.normalization import BYTES, BYTES_BGR, Normalization
from npuserve.vision.suppression import MAX_OBJECTS, overlap, suppress

FORM = InputForm(64, 96, is_normalized_inside=False)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(8, 128), st.integers(8, 128))
def test_the_inverse_of_a_letterbox_is_the_picture(width: int, height: int, form_width: int, form_height: int) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    boxed, place = letterbox(pixels, InputForm(form_height, form_width, is_normalized_inside=False))
    assert boxed.shape == (form_height, form_width, 3)
    rows, columns = np.nonzero((boxed != 114).any(axis=2))
    box = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], dtype=np.float64)
    found = place.inverse(box)[0]
    # One input pixel is this many of the picture's; the sides are rounded to whole ones.
    assert np.abs(found - (0, 0, width, height)).max() <= 1.0 / place.scale + 1e-9


def test_a_letterbox_keeps_the_shape_and_pads_grey() -> None:
    pixels = np.full((10, 40, 3), 200, dtype=np.uint8)
    boxed, place = letterbox(pixels, FORM)
    assert place.scale == pytest.approx(2.4)
    assert (boxed[:20] == 114).all()
    assert (boxed[20:44] == 200).all()
    assert (boxed[44:] == 114).all()


def test_boxes_are_cut_at_the_pictures_edges() -> None:
    _, place = letterbox(np.zeros((10, 40, 3), dtype=np.uint8), FORM)
    assert place.inverse(np.array([[-50.0, -50.0, 500.0, 500.0]])).tolist() == [[0.0, 0.0, 40.0, 10.0]]


def test_overlap_is_intersection_over_union() -> None:
    box = np.array([0.0, 0.0, 10.0, 10.0])
    others = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [10, 0, 20, 10], [2, 2, 4, 4], [3, 3, 3, 3]], dtype=np.float64)
    assert overlap(box, others).tolist() == pytest.approx([1.0, 1 / 3, 0.0, 0.04, 0.0])
    assert overlap(others[4], others[4:]).tolist() == [0.0]


def test_suppression_keeps_the_best_of_a_class_and_leaves_other_classes_alone() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [50, 50, 60, 60]], dtype=np.float64)
    scores = np.array([0.8, 0.9, 0.7, 0.6])
    classes = np.array([1, 1, 2, 1], dtype=np.int64)
    assert suppress(boxes, scores, classes, 0.45).tolist() == [1, 2, 3]
    assert suppress(boxes, scores, classes, 0.95).tolist() == [1, 0, 2, 3]


def test_suppression_of_nothing_is_nothing_and_of_much_is_bounded() -> None:
    assert suppress(np.empty((0, 4)), np.empty(0), np.empty(0, dtype=np.int64), 0.5).tolist() == []
    count = 5000
    corner = np.arange(count, dtype=np.float64) * 20
    boxes = np.stack([corner, corner, corner + 10, corner + 10], axis=1)
    assert len(suppress(boxes, np.linspace(0.3, 0.9, count), np.zeros(count, dtype=np.int64), 0.5)) == MAX_OBJECTS


def test_normalization_by_form() -> None:
    pixels = np.array([[[10, 20, 30], [40, 50, 60]]], dtype=np.uint8)
    first = InputForm(1, 2, is_normalized_inside=False)
    made = Normalization((10, 20, 30), (2, 2, 3)).apply(pixels, first)
    assert made.dtype == np.float32
    assert made.shape == (1, 3, 1, 2)
    assert made[0, :, 0, 1].tolist() == [15.0, 15.0, 10.0]
    last = InputForm(1, 2, is_normalized_inside=False, channels_last=True)
    assert BYTES_BGR.apply(pixels, last)[0, 0, 0].tolist() == [30.0, 20.0, 10.0]
    inside = InputForm(1, 2, is_normalized_inside=True, channels_last=True)
    given_bytes = BYTES.apply(pixels, inside)
    assert given_bytes.dtype == np.uint8
    assert given_bytes.tolist() == [pixels.tolist()]
