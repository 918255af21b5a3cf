"""Objects planted in detectors' outputs by each family's own formula are found again, in the picture's pixels."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import DeviceError, UnsupportedModelError
from npuserve.vision.detector import Detector
from npuserve.vision.labels import Labels
from npuserve.vision.network import InputForm
from npuserve.vision.normalization import UNIT

SIZE, CLASSES = 128, 7
LABELS = Labels(tuple(f"thing {n}" for n in range(CLASSES)))
STRIDES = (8, 16, 32)
CELLS = [(SIZE // stride) ** 2 for stride in STRIDES]
# (x, y, width, height) in input pixels, class, score: one per stride, and a weaker double of the first.
PLANTED = [((20.0, 30.0, 16.0, 24.0), 2, 0.9), ((70.0, 50.0, 40.0, 44.0), 5, 0.8), ((64.0, 90.0, 90.0, 60.0), 0, 0.7)]
DOUBLE = ((24.5, 30.0, 16.0, 24.0), 2, 0.6)
Outputs = list[NDArray[np.float32]]


def logit(value: float) -> float:
    return float(np.log(value / (1 - value)))


def placed() -> list[tuple[int, tuple[float, float, float, float], int, float]]:
    """(index of the stride, box, class, score) of every planted object."""
    return [(i, *planted) for i, planted in enumerate(PLANTED)] + [(0, *DOUBLE)]


def cell_of(x: float, y: float, stride: int) -> tuple[int, int]:
    return int(x // stride), int(y // stride)


def v5(*, raw: bool, five_axes: bool = False, anchors: str = "v5") -> Outputs:
    from npuserve.vision.heads import _ANCHORS_V5, _ANCHORS_V7

    table = _ANCHORS_V5 if anchors == "v5" else _ANCHORS_V7
    low = -9.0 if raw else 0.0
    outputs = [np.full((1, 3, SIZE // s, SIZE // s, 5 + CLASSES), low, dtype=np.float32) for s in STRIDES]
    for number, (level, (x, y, width, height), class_id, score) in enumerate(placed()):
        stride, anchor = STRIDES[level], number % 3
        column, row = cell_of(x, y, stride)
        wide, high = table[level][anchor]
        values = [(x / stride - column + 0.5) / 2, (y / stride - row + 0.5) / 2]
        values += [np.sqrt(width / wide) / 2, np.sqrt(height / high) / 2, score]
        assert min(values) > 0
        assert max(values) < 1
        convert = logit if raw else float
        outputs[level][0, anchor, row, column, :5] = [convert(float(value)) for value in values]
        outputs[level][0, anchor, row, column, 5 + class_id] = 9.0 if raw else 1.0
    if five_axes:
        return outputs
    return [output.transpose(0, 1, 4, 2, 3).reshape(1, -1, output.shape[2], output.shape[3]) for output in outputs]


def v8(*, bins: int, raw: bool, with_sum: bool) -> Outputs:
    outputs: Outputs = []
    for level, stride in enumerate(STRIDES):
        side = SIZE // stride
        box = np.zeros((1, 4, bins, side, side), dtype=np.float32)
        classes = np.full((1, CLASSES, side, side), -9.0 if raw else 0.0, dtype=np.float32)
        for own, (x, y, width, height), class_id, score in placed():
            if own != level:
                continue
            column, row = cell_of(x, y, stride)
            cx, cy = column + 0.5, row + 0.5
            sides = [cx - (x - width / 2) / stride, cy - (y - height / 2) / stride]
            sides += [(x + width / 2) / stride - cx, (y + height / 2) / stride - cy]
            for index, distance in enumerate(sides):
                if bins == 1:
                    box[0, index, 0, row, column] = distance
                else:  # all the weight on the two bins round the distance
                    lower, rest = int(distance), distance - int(distance)
                    box[0, index, :, row, column] = -1e4
                    box[0, index, lower, row, column] = np.log(max(1 - rest, 1e-9))
                    box[0, index, lower + 1, row, column] = np.log(max(rest, 1e-9))
            classes[0, class_id, row, column] = logit(score) if raw else score
        outputs += [box.reshape(1, 4 * bins, side, side), classes]
        outputs += [classes.sum(axis=1, keepdims=True)] if with_sum else []
    return outputs


def yolox(*, raw: bool) -> Outputs:
    outputs = [np.zeros((1, 5 + CLASSES, SIZE // s, SIZE // s), dtype=np.float32) for s in STRIDES]
    for output in outputs:
        output[:, 4:] = -9.0 if raw else 0.0
    for level, (x, y, width, height), class_id, score in placed():
        stride = STRIDES[level]
        column, row = cell_of(x, y, stride)
        outputs[level][0, :4, row, column] = [
            x / stride - column,
            y / stride - row,
            np.log(width / stride),
            np.log(height / stride),
        ]
        outputs[level][0, 4, row, column] = logit(score) if raw else score
        outputs[level][0, 5 + class_id, row, column] = 9.0 if raw else 1.0
    return outputs


def yolox_single() -> Outputs:
    return [np.concatenate([o.reshape(1, 5 + CLASSES, -1) for o in yolox(raw=False)], axis=2).transpose(0, 2, 1)]


def decoded(count: int, *, objectness: bool) -> NDArray[np.float32]:
    rows = np.zeros((1, count, 4 + objectness + CLASSES), dtype=np.float32)
    for number, (_, box, class_id, score) in enumerate(placed()):
        rows[0, 11 * number, :4] = box
        if objectness:
            rows[0, 11 * number, 4] = score
        rows[0, 11 * number, 4 + objectness + class_id] = 1.0 if objectness else score
    return rows


FORMS: dict[str, tuple[Callable[[], Outputs], tuple[str, ...]]] = {
    "v5 with sigmoid": (lambda: v5(raw=False), ("auto", "yolov5")),
    "v5 without sigmoid": (lambda: v5(raw=True), ("auto", "yolov5")),
    "v5 in five axes": (lambda: v5(raw=True, five_axes=True), ("auto", "yolov5")),
    "v7": (lambda: v5(raw=False, anchors="v7"), ("yolov7",)),
    "v8 with bins": (lambda: v8(bins=16, raw=False, with_sum=False), ("auto", "yolov8", "yolov11", "yolo11")),
    "v8 with the sum of classes": (lambda: v8(bins=16, raw=False, with_sum=True), ("auto", "yolov8")),
    "v8 without sigmoid": (lambda: v8(bins=16, raw=True, with_sum=False), ("auto", "yolov8")),
    "v8 with distances": (lambda: v8(bins=1, raw=False, with_sum=False), ("auto", "yolov8")),
    "yolox": (lambda: yolox(raw=False), ("auto", "yolox")),
    "yolox without sigmoid": (lambda: yolox(raw=True), ("auto", "yolox")),
    "yolox in one": (yolox_single, ("auto", "yolox")),
    "v8 in one": (lambda: [decoded(sum(CELLS), objectness=False).transpose(0, 2, 1)], ("auto", "raw", "yolov8")),
    "v8 in one, turned": (lambda: [decoded(sum(CELLS), objectness=False)], ("auto", "raw")),
    "v5 in one": (lambda: [decoded(3 * sum(CELLS), objectness=True)], ("auto", "raw", "yolov5")),
}
CASES = [(name, kind) for name, (_, kinds) in FORMS.items() for kind in kinds]


class PlantedNetwork:
    """Gives the same outputs whatever it sees."""

    name = "planted.rknn"
    form = InputForm(SIZE, SIZE, is_normalized_inside=True, channels_last=True)

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs
        self.seen: list[NDArray[np.generic]] = []

    def infer(self, image: NDArray[np.generic]) -> Outputs:
        self.seen.append(image)
        return self.outputs

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_planted_objects_are_found(name: str, kind: str) -> None:
    network = PlantedNetwork(FORMS[name][0]())
    # Twice as wide as high: scaled by 1/2, with 32 rows of grey above and below.
    picture = np.zeros((128, 256, 3), dtype=np.uint8)
    found = Detector(network, LABELS, UNIT, kind).detect(picture, 0.25, 0.45).objects
    assert [item.class_id for item in found] == [class_id for _, class_id, _ in PLANTED]
    assert [item.label for item in found] == [f"thing {class_id}" for _, class_id, _ in PLANTED]
    for item, ((x, y, width, height), _, score) in zip(found, PLANTED, strict=True):
        assert item.score == pytest.approx(score, abs=2e-3)
        corners = [x - width / 2, y - height / 2 - 32, x + width / 2, y + height / 2 - 32]
        expected = np.clip(np.array(corners) * 2, 0, [256, 128, 256, 128])
        assert item.box == pytest.approx(expected, abs=0.2)
    assert network.seen[0].shape == (1, SIZE, SIZE, 3)
    assert network.seen[0].dtype == np.uint8


@pytest.mark.parametrize("single", [False, True])
def test_an_input_that_is_not_square_has_its_cells_in_rows(single: bool) -> None:
    height, width = 96, 160
    outputs = [np.zeros((1, 5 + CLASSES, height // s, width // s), dtype=np.float32) for s in STRIDES]
    # The cell in column 8, row 3 of stride 16, right at its corner: a box of 32 x 16 round (128, 48).
    outputs[1][0, :, 3, 8] = [0, 0, np.log(2), 0, 1, 0, 0, 0, 0, 0, 0, 1]
    if single:
        outputs = [np.concatenate([o.reshape(1, 5 + CLASSES, -1) for o in outputs], axis=2).transpose(0, 2, 1)]
    network = PlantedNetwork(outputs)
    network.form = InputForm(height, width, is_normalized_inside=True, channels_last=True)
    (found,) = Detector(network, LABELS, UNIT).detect(np.zeros((height, width, 3), dtype=np.uint8), 0.25, 0.45).objects
    assert found.class_id == 6
    assert found.box == pytest.approx((112, 40, 144, 56), abs=1e-3)


def test_threshold_and_overlap_are_the_callers() -> None:
    detector = Detector(PlantedNetwork(yolox(raw=False)), LABELS, UNIT)
    picture = np.zeros((128, 128, 3), dtype=np.uint8)
    assert len(detector.detect(picture, 0.75, 0.45).objects) == 2
    assert len(detector.detect(picture, 0.25, 1.0).objects) == 4
    assert detector.detect(picture, 1.0, 0.45).objects == []


def test_without_labels_classes_are_called_by_number() -> None:
    detector = Detector(PlantedNetwork(v5(raw=False)), Labels(), UNIT)
    found = detector.detect(np.zeros((128, 128, 3), dtype=np.uint8), 0.85, 0.45).objects
    assert [item.label for item in found] == ["class 2"]


@pytest.mark.parametrize(
    "outputs",
    [
        [np.zeros((1, 1000), np.float32)],
        [np.zeros((1, 12, 99), np.float32)],
        [np.zeros((1, 12, 4, 4), np.float32)] * 2,
        [np.zeros((1, 12, 4, 4), np.float32)] * 3,
        [np.zeros((1, 36, 5, 4), np.float32)] * 3,
        [],
    ],
)
def test_outputs_of_no_known_kind_name_their_shapes(outputs: Outputs) -> None:
    detector = Detector(PlantedNetwork(outputs), LABELS, UNIT)
    with pytest.raises(UnsupportedModelError, match="of no kind that is known here"):
        detector.detect(np.zeros((8, 8, 3), dtype=np.uint8), 0.25, 0.45)


def test_values_that_are_not_finite_are_the_devices_fault() -> None:
    outputs = yolox(raw=False)
    outputs[1][:] = np.nan
    with pytest.raises(DeviceError, match="not finite"):
        Detector(PlantedNetwork(outputs), LABELS, UNIT).detect(np.zeros((8, 8, 3), dtype=np.uint8), 0.25, 0.45)
