"""Fitting a picture into a network's input with its shape kept, and the way back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.vision.network import InputForm

_GREY = 114  # what detectors are trained to see round a picture


@dataclass(frozen=True, slots=True)
class Letterbox:
    """A picture of `width` x `height` scaled by `scale` with its corner at (`left`, `top`) of the input."""

    width: int
    height: int
    scale: float
    left: int
    top: int

    def inverse(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes [n, 4] (x1, y1, x2, y2) of the input as pixels of the picture, cut at its edges."""
        moved = (boxes - np.array([self.left, self.top] * 2)) / self.scale
        return np.asarray(np.clip(moved, 0.0, np.array([self.width, self.height] * 2, dtype=np.float64)))


def letterbox(pixels: NDArray[np.uint8], form: InputForm) -> tuple[NDArray[np.uint8], Letterbox]:
    """`pixels` [height, width, 3] in the middle of a grey [form.height, form.width, 3]."""
    from PIL import Image

    height, width = pixels.shape[:2]
    scale = min(form.width / width, form.height / height)
    new_width, new_height = max(round(width * scale), 1), max(round(height * scale), 1)
    left, top = (form.width - new_width) // 2, (form.height - new_height) // 2
    canvas = np.full((form.height, form.width, 3), _GREY, dtype=np.uint8)
    resized = Image.fromarray(pixels).resize((new_width, new_height), Image.Resampling.BILINEAR)
    canvas[top : top + new_height, left : left + new_width] = np.asarray(resized)
    return canvas, Letterbox(width, height, scale, left, top)
