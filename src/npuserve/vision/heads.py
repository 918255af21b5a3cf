"""Detectors' outputs to boxes: the formulas of the families' own decoders.

Input pixels are those of the network's input. A level is one output at one stride (8, 16, 32): a cell of its grid
covers stride x stride pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import DeviceError
from npuserve.vision.network import InputForm

Array = NDArray[np.float32]

STRIDES = (8, 16, 32)
# Widths and heights in pixels, three for each stride, of the models trained on COCO.
_ANCHORS_V5 = (((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119)), ((116, 90), (156, 198), (373, 326)))
_ANCHORS_V7 = (((12, 16), (19, 36), (40, 28)), ((36, 75), (76, 55), (72, 146)), ((142, 110), (192, 243), (459, 401)))


class Candidates(NamedTuple):
    """Boxes [n, 4] as x1, y1, x2, y2 in input pixels, their scores [n] and classes [n]."""

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """Cells of one stride, flattened row by row: `x` and `y` [cells] count from 0."""

    stride: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]


def levels_of(form: InputForm) -> list[Level]:
    made = []
    for stride in STRIDES:
        y, x = np.mgrid[0 : form.height // stride, 0 : form.width // stride]
        made.append(Level(stride, x.reshape(-1).astype(np.float64), y.reshape(-1).astype(np.float64)))
    return made


def as_probabilities(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sigmoid of logits; what is within 0..1 throughout had it already."""
    if values.size and (values.min() < 0.0 or values.max() > 1.0):
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -60.0, 60.0))))
    return values


def anchored(outputs: Sequence[Array], form: InputForm, *, v7: bool, threshold: float) -> Candidates:
    """YOLOv5 and v7: per stride [1, 3 * (5 + classes), h, w] or [1, 3, h, w, 5 + classes], sigmoid done or not.

    Centre (2 s - 0.5 + cell) * stride, size (2 s)^2 * anchor, score objectness * class.
    """
    found = []
    for level, anchors, output in zip(levels_of(form), _ANCHORS_V7 if v7 else _ANCHORS_V5, outputs, strict=True):
        cells = output[0].reshape(3, -1, len(level.x)).transpose(0, 2, 1) if output.ndim == 4 else output[0]
        cells = cells.reshape(3, len(level.x), -1).astype(np.float64)
        values = as_probabilities(cells)
        for number, (width, height) in enumerate(anchors):
            x = (values[number, :, 0] * 2 - 0.5 + level.x) * level.stride
            y = (values[number, :, 1] * 2 - 0.5 + level.y) * level.stride
            sizes = (values[number, :, 2:4] * 2) ** 2 * (width, height)
            scores = values[number, :, 4:5] * values[number, :, 5:]
            found.append(_chosen(_from_center(x, y, sizes[:, 0], sizes[:, 1]), scores, threshold))
    return _joined(found)


def anchor_free(outputs: Sequence[Array], form: InputForm, *, threshold: float) -> Candidates:
    """YOLOv8 and v11 per stride: box [1, 4 (* bins), h, w], classes [1, n, h, w], perhaps their sum [1, 1, h, w].

    Each side's distance from the cell's centre is the expectation of a softmax over `bins`, in strides (DFL).
    """
    per_level = len(outputs) // len(STRIDES)
    found = []
    for number, level in enumerate(levels_of(form)):
        box, classes = outputs[per_level * number][0], outputs[per_level * number + 1][0]
        sides = box.reshape(4, -1, len(level.x)).astype(np.float64)
        if sides.shape[1] > 1:
            weights = np.exp(sides - sides.max(axis=1, keepdims=True))
            bins = np.arange(sides.shape[1], dtype=np.float64)[None, :, None]
            distances = (weights * bins).sum(axis=1) / weights.sum(axis=1)
        else:
            distances = sides[:, 0]
        left, top, right, bottom = distances
        x, y = level.x + 0.5, level.y + 0.5
        boxes = np.stack([x - left, y - top, x + right, y + bottom], axis=1) * level.stride
        scores = as_probabilities(classes.reshape(classes.shape[0], -1).T.astype(np.float64))
        found.append(_chosen(boxes, scores, threshold))
    return _joined(found)


def yolox(outputs: Sequence[Array], form: InputForm, *, threshold: float) -> Candidates:
    """YOLOX: per stride [1, 5 + classes, h, w], or all strides in one [1, cells, 5 + classes].

    Centre (value + cell) * stride, size exp(value) * stride, score objectness * class.
    """
    levels = levels_of(form)
    if len(outputs) == 1:
        rows = outputs[0][0].astype(np.float64)
        ends = np.cumsum([len(level.x) for level in levels])[:-1]
        parts = np.split(rows, ends)
    else:
        parts = [output[0].reshape(output.shape[1], -1).T.astype(np.float64) for output in outputs]
    found = []
    for level, part in zip(levels, parts, strict=True):
        x, y = (part[:, 0] + level.x) * level.stride, (part[:, 1] + level.y) * level.stride
        sizes = np.exp(np.clip(part[:, 2:4], -20.0, 20.0)) * level.stride
        scores = as_probabilities(part[:, 4:5]) * as_probabilities(part[:, 5:])
        found.append(_chosen(_from_center(x, y, sizes[:, 0], sizes[:, 1]), scores, threshold))
    return _joined(found)


def decoded(output: Array, *, with_objectness: bool, threshold: float) -> Candidates:
    """A single output [1, n, 4 + classes], or with objectness 5 + classes, whose boxes are decoded: centre and size."""
    rows = output[0].astype(np.float64)
    scores = rows[:, 4:5] * rows[:, 5:] if with_objectness else rows[:, 4:]
    return _chosen(_from_center(*rows[:, :4].T), scores, threshold)


def _from_center(
    x: NDArray[np.float64], y: NDArray[np.float64], width: NDArray[np.float64], height: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)


def _chosen(boxes: NDArray[np.float64], scores: NDArray[np.float64], threshold: float) -> Candidates:
    """Each box with its best class, where that reaches `threshold`. Raises DeviceError when it is not finite."""
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), classes]
    if not np.isfinite(best).all():
        raise DeviceError("the detector's output is not finite")
    kept = (best >= threshold) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes[kept], best[kept], classes[kept].astype(np.int64))


def _joined(parts: Sequence[Candidates]) -> Candidates:
    return Candidates(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
