"""What is in a picture."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import DeviceError
from npuserve.vision.labels import Labels
from npuserve.vision.network import InputForm, Network
from npuserve.vision.normalization import Normalization

# The part of the shorter side that is looked at, as classifiers are evaluated (224 of 256).
_CROP = 0.875


class ClassScore(NamedTuple):
    class_id: int
    label: str
    score: float


class Classified(NamedTuple):
    """`top` falls from the highest score; scores are probabilities. Milliseconds are the network's alone."""

    inference_ms: float
    top: list[ClassScore]


class Classifier:
    """One classifying network; used by one thread at a time."""

    def __init__(self, network: Network, labels: Labels, normalization: Normalization) -> None:
        self.network = network
        self._labels = labels
        self._normalization = normalization

    def classify(self, pixels: NDArray[np.uint8], top_n: int) -> Classified:
        """The `top_n` most likely classes of `pixels` [height, width, 3]. Raises DeviceError."""
        image = self._normalization.apply(center_crop(pixels, self.network.form), self.network.form)
        started_s = time.perf_counter()
        outputs = self.network.infer(image)
        inference_ms = 1e3 * (time.perf_counter() - started_s)
        scores = probabilities(outputs[0].reshape(-1))
        order = np.argsort(-scores, kind="stable")[:top_n]
        return Classified(inference_ms, [ClassScore(int(i), self._labels[int(i)], float(scores[i])) for i in order])


def center_crop(pixels: NDArray[np.uint8], form: InputForm) -> NDArray[np.uint8]:
    """The middle of a picture, [form.height, form.width, 3], its shape kept."""
    from PIL import Image

    height, width = pixels.shape[:2]
    # The largest part of the picture with the network's proportions, then 7/8 of it.
    scale = min(width / form.width, height / form.height) * _CROP
    half_width, half_height = form.width * scale / 2, form.height * scale / 2
    box = (width / 2 - half_width, height / 2 - half_height, width / 2 + half_width, height / 2 + half_height)
    size = (form.width, form.height)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR, box=box))


def probabilities(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax of logits; values that are probabilities already stay. Raises DeviceError when they are not finite."""
    if not values.size or not np.isfinite(values).all():
        raise DeviceError("the classifier's output is empty or not finite")
    wide = values.astype(np.float64)
    if wide.min() >= 0.0 and abs(wide.sum() - 1.0) < 0.02:
        return wide
    weights = np.exp(wide - wide.max())
    return np.asarray(weights / weights.sum())
