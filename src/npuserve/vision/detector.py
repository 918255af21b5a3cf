"""What is where in a picture."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npuserve.vision.detector_kind import candidates
from npuserve.vision.labels import Labels
from npuserve.vision.letterbox import letterbox
from npuserve.vision.network import Network
from npuserve.vision.normalization import Normalization
from npuserve.vision.suppression import suppress


class Found(NamedTuple):
    """One object; `box` is x1, y1, x2, y2 in pixels of the picture."""

    class_id: int
    label: str
    score: float
    box: tuple[float, float, float, float]


class Detected(NamedTuple):
    """`objects` fall from the highest score. Milliseconds are the network's alone."""

    inference_ms: float
    objects: list[Found]


class Detector:
    """One detecting network; used by one thread at a time. `kind` is one of DETECTORS."""

    def __init__(self, network: Network, labels: Labels, normalization: Normalization, kind: str = "auto") -> None:
        self.network = network
        self._labels = labels
        self._normalization = normalization
        self._kind = kind

    def detect(self, pixels: NDArray[np.uint8], threshold: float, most_overlap: float) -> Detected:
        """Objects of `pixels` [height, width, 3] that score `threshold` or more.

        Raises DeviceError, UnsupportedModelError.
        """
        form = self.network.form
        boxed, place = letterbox(pixels, form)
        image = self._normalization.apply(boxed, form)
        started_s = time.perf_counter()
        outputs = self.network.infer(image)
        inference_ms = 1e3 * (time.perf_counter() - started_s)
        found = candidates(outputs, form, self._kind, len(self._labels), threshold)
        kept = suppress(found.boxes, found.scores, found.classes, most_overlap)
        boxes = place.inverse(found.boxes[kept])
        objects = [
            Found(int(class_id), self._labels[int(class_id)], float(score), (x1, y1, x2, y2))
            for class_id, score, (x1, y1, x2, y2) in zip(
                found.classes[kept], found.scores[kept], boxes.tolist(), strict=True
            )
            if x2 > x1 and y2 > y1
        ]
        return Detected(inference_ms, objects)
