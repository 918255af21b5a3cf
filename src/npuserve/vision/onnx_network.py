"""A vision model on ONNX Runtime, on any machine."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError, DeviceError, DeviceUnavailableError, UnsupportedModelError
from npuserve.vision.network import InputForm


class OnnxNetwork:
    """See `Network`; the file must have one image input, of `open_size` (height, width) where it leaves that open.

    Raises CheckpointError, DeviceUnavailableError.
    """

    def __init__(self, path: Path, open_size: tuple[int, int]) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise DeviceUnavailableError(f"{path}: ONNX Runtime is not installed; pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 2
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own exceptions have no common public base
            raise CheckpointError(f"{path}: ONNX Runtime cannot load it: {str(error).splitlines()[0][:200]}") from error
        self._session: Any = session
        self.name = path.name
        inputs = session.get_inputs()
        if len(inputs) != 1:
            raise UnsupportedModelError(f"{path}: has {len(inputs)} inputs; a vision model has one, the image")
        self._input = inputs[0]
        self._dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}.get(
            self._input.type
        )
        if self._dtype is None:
            raise UnsupportedModelError(f"{path}: its input is of type {self._input.type}; float or uint8 is needed")
        self.form = _form(path, self._input.shape, open_size, is_bytes=self._dtype is np.uint8)

    def infer(self, image: NDArray[np.generic]) -> list[NDArray[np.float32]]:
        """See `Network.infer`."""
        if self.form.is_normalized_inside and not self.form.channels_last:
            image = image.transpose(0, 3, 1, 2)
        try:
            outputs = self._session.run(None, {self._input.name: np.ascontiguousarray(image, dtype=self._dtype)})
        except Exception as error:  # as above
            raise DeviceError(f"{self.name}: ONNX Runtime failed: {str(error).splitlines()[0][:200]}") from error
        return [np.asarray(output, dtype=np.float32) for output in outputs]

    def close(self) -> None:
        self._session = None


def _form(path: Path, shape: list[Any], open_size: tuple[int, int], *, is_bytes: bool) -> InputForm:
    sizes = [size if isinstance(size, int) and size > 0 else None for size in shape]
    if len(sizes) == 4 and sizes[0] in (1, None) and 3 in (sizes[1], sizes[3]):
        channels_last = sizes[1] != 3
        height, width = sizes[1:3] if channels_last else sizes[2:4]
        return InputForm(height or open_size[0], width or open_size[1], is_bytes, channels_last)
    raise UnsupportedModelError(f"{path}: its input has shape {shape}; one image of 3 channels is needed")
