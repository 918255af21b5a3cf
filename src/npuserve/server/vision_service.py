"""The vision model behind its routes: one thread that runs it, a short queue in front."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import OverloadedError
from npuserve.vision.classifier import Classified, Classifier
from npuserve.vision.detector import Detected, Detector
from npuserve.vision.picture import decode_picture

MAX_WAITING = 64
_Result = TypeVar("_Result")


class VisionService:
    """Pictures are decoded and judged one at a time, in a thread of their own: a picture waits for those before it, and
    the language model's loop, which the driver lets in between two inferences, for one inference at most.
    """

    def __init__(self, model: Classifier | Detector, *, top_n: int, threshold: float, most_overlap: float) -> None:
        self.classifier = model if isinstance(model, Classifier) else None
        self.detector = model if isinstance(model, Detector) else None
        self.name = model.network.name
        self.top_n = top_n
        self.threshold = threshold
        self.most_overlap = most_overlap
        self._network = model.network
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vision")
        self._num_waiting = 0

    async def classify(self, classifier: Classifier, data: bytes, top_n: int) -> Classified:
        """Raises RequestError for a bad image, DeviceError, OverloadedError."""
        return await self._run(data, lambda pixels: classifier.classify(pixels, top_n))

    async def detect(self, detector: Detector, data: bytes, threshold: float, most_overlap: float) -> Detected:
        """Raises as `classify`."""
        return await self._run(data, lambda pixels: detector.detect(pixels, threshold, most_overlap))

    def close(self) -> None:
        """Let the running picture end, drop the others, unload the model."""
        self._thread.shutdown(cancel_futures=True)
        self._network.close()

    async def _run(self, data: bytes, judge: Callable[[NDArray[np.uint8]], _Result]) -> _Result:
        if self._num_waiting >= MAX_WAITING:
            raise OverloadedError(f"{self._num_waiting} images are waiting and no more are taken; try again later")
        self._num_waiting += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(lambda: judge(decode_picture(data))))
        finally:
            self._num_waiting -= 1
