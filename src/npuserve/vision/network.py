"""The Network seam: one loaded vision model."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class InputForm:
    """The image that a network takes: `height` x `width` of 3 channels.

    With `is_normalized_inside` it is uint8 [1, height, width, 3], as a `.rknn` takes it, whose mean and deviation were
    given when it was converted; else float32 [1, 3, height, width] or, `channels_last`, [1, height, width, 3].
    """

    height: int
    width: int
    is_normalized_inside: bool
    channels_last: bool = False


class Network(Protocol):
    """Used by one thread at a time."""

    @property
    def name(self) -> str:
        """The file's name, as replies tell it."""

    @property
    def form(self) -> InputForm: ...

    def infer(self, image: NDArray[np.generic]) -> list[NDArray[np.float32]]:
        """The outputs for one input of `form`, in the model's order. Raises DeviceError."""

    def close(self) -> None:
        """Unload; safe to call twice."""
