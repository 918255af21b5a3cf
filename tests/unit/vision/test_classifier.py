"""Scores, crops and the classes that come first."""

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import DeviceError
from npuserve.vision.classifier import Classifier, ClassScore, center_crop, probabilities
from npuserve.vision.labels import Labels
from npuserve.vision.network import InputForm
from npuserve.vision.normalization import BYTES


class OneOutput:
    name = "one.rknn"
    form = InputForm(4, 4, is_normalized_inside=True, channels_last=True)

    def __init__(self, values: list[float]) -> None:
        self.values = np.array([values], dtype=np.float32)

    def infer(self, image: NDArray[np.generic]) -> list[NDArray[np.float32]]:
        return [self.values]

    def close(self) -> None:
        pass


def classified(values: list[float], top_n: int = 3) -> list[ClassScore]:
    classifier = Classifier(OneOutput(values), Labels(("cat", "dog")), BYTES)
    result = classifier.classify(np.zeros((9, 9, 3), dtype=np.uint8), top_n)
    assert result.inference_ms >= 0
    return result.top


def test_logits_become_probabilities_and_fall() -> None:
    top = classified([1.0, 3.0, 2.0, -4.0])
    assert [(item.class_id, item.label) for item in top] == [(1, "dog"), (2, "class 2"), (0, "cat")]
    weights = np.exp([3.0, 2.0, 1.0, -4.0])
    assert [item.score for item in top] == pytest.approx((weights / weights.sum())[:3])


def test_probabilities_stay_as_they_are() -> None:
    assert [item.score for item in classified([0.1, 0.7, 0.2])] == pytest.approx([0.7, 0.2, 0.1])


def test_more_classes_than_there_are_is_all_of_them_and_equal_ones_keep_their_order() -> None:
    assert [item.class_id for item in classified([5.0, 5.0], top_n=10)] == [0, 1]


@pytest.mark.parametrize("values", [[], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_an_output_that_is_no_score_is_the_devices_fault(values: list[float]) -> None:
    with pytest.raises(DeviceError, match="empty or not finite"):
        probabilities(np.array(values, dtype=np.float32))


def test_huge_logits_do_not_overflow() -> None:
    assert probabilities(np.array([1e30, 0.0], dtype=np.float32)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("height", "width"), [(100, 300), (300, 100), (1, 1), (3000, 20)])
def test_the_crop_is_the_middle_of_the_picture(height: int, width: int) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, :, 0] = np.linspace(0, 255, width).astype(np.uint8)
    pixels[:, :, 1] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    crop = center_crop(pixels, InputForm(64, 64, is_normalized_inside=True)).astype(float)
    assert crop.shape == (64, 64, 3)
    if min(height, width) > 1:
        assert crop[:, :, :2].mean() == pytest.approx(127.5, abs=3)
        # 7/8 of the shorter side is seen.
        shorter = 0 if width < height else 1
        assert crop[:, :, shorter].max() - crop[:, :, shorter].min() == pytest.approx(255 * 0.875, abs=8)
