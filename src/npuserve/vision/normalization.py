"""From pixels to the numbers that a network was trained on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.vision.network import InputForm


@dataclass(frozen=True, slots=True)
class Normalization:
    """(value - mean) / deviation of red, green and blue, from 0 to 255; then `is_bgr` turns the channels round."""

    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    deviation: tuple[float, float, float] = (1.0, 1.0, 1.0)
    is_bgr: bool = False

    def apply(self, pixels: NDArray[np.uint8], form: InputForm) -> NDArray[np.generic]:
        """`pixels` [height, width, 3] of the form's size as the network's input, a batch of one."""
        values: NDArray[np.generic] = pixels
        if not form.is_normalized_inside:
            mean, deviation = np.array(self.mean, dtype=np.float32), np.array(self.deviation, dtype=np.float32)
            values = (pixels.astype(np.float32) - mean) / deviation
        batch = (values[:, :, ::-1] if self.is_bgr else values)[None]
        return batch if form.channels_last or form.is_normalized_inside else batch.transpose(0, 3, 1, 2)


# What classifiers trained on ImageNet take (torchvision's models).
IMAGENET = Normalization((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
UNIT = Normalization(deviation=(255.0, 255.0, 255.0))
BYTES = Normalization()
BYTES_BGR = Normalization(is_bgr=True)
