"""A vision model on the NPU, through the vendor's Python package rknn-toolkit-lite2."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError, DeviceError, DeviceUnavailableError
from npuserve.vision.network import InputForm

# The vendor's numbers.
_CORE_MASKS = {"auto": 0, "0": 1, "1": 2, "2": 4, "0_1": 3, "0_1_2": 7}
_PRIORITIES = {"high": 0, "medium": 1, "low": 2}
_VERSIONS = "a .rknn must be made for this chip and by the toolkit version of its librknnrt"


class RknnNetwork:
    """See `Network`; the file does not tell the size of its input, so it is given.

    Raises CheckpointError, DeviceUnavailableError.
    """

    def __init__(self, path: Path, size: tuple[int, int], core_mask: str = "auto", priority: str = "high") -> None:
        try:
            from rknnlite.api import RKNNLite
        except ImportError as error:
            raise DeviceUnavailableError(
                f"{path}: rknn-toolkit-lite2 is not installed; on the board, pip install rknn-toolkit-lite2"
            ) from error
        self.name = path.name
        self.form = InputForm(*size, is_normalized_inside=True, channels_last=True)
        self._rknn: Any = RKNNLite()
        code = self._rknn.load_rknn(str(path))
        if code != 0:
            self.close()
            raise CheckpointError(f"{path}: load_rknn returned {code}; {_VERSIONS}")
        code = self._init_runtime(_CORE_MASKS[core_mask], _PRIORITIES[priority])
        if code != 0:
            self.close()
            raise DeviceUnavailableError(f"{path}: init_runtime returned {code}; {_VERSIONS}")

    def infer(self, image: NDArray[np.generic]) -> list[NDArray[np.float32]]:
        """See `Network.infer`."""
        try:
            outputs = self._rknn.inference(inputs=[np.ascontiguousarray(image)], data_format=["nhwc"])
        except Exception as error:  # the package raises plain Exceptions
            raise DeviceError(f"{self.name}: the NPU's runtime failed: {str(error)[:200]}") from error
        if outputs is None:
            raise DeviceError(f"{self.name}: the NPU's runtime gave no output; see the kernel's log")
        return [np.asarray(output, dtype=np.float32) for output in outputs]

    def close(self) -> None:
        if self._rknn is not None:
            self._rknn.release()
            self._rknn = None

    def _init_runtime(self, core_mask: int, priority: int) -> int:
        """Chips with a single core refuse a mask; packages before 2.3 know no priority."""
        options: dict[str, int] = {"core_mask": core_mask} if core_mask else {}
        try:
            return int(self._rknn.init_runtime(**options, priority=priority))
        except TypeError:
            return int(self._rknn.init_runtime(**options))
