"""Which decoder a detector's outputs need, told from their shapes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import UnsupportedModelError
from npuserve.vision.detector_names import DETECTORS
from npuserve.vision.heads import STRIDES, Candidates, anchor_free, anchored, decoded, yolox
from npuserve.vision.network import InputForm


def candidates(
    outputs: Sequence[NDArray[np.float32]], form: InputForm, detector: str, num_labels: int, threshold: float
) -> Candidates:
    """The boxes in `outputs` that reach `threshold`, not yet suppressed.

    `num_labels` (0: not known) decides where shapes leave a doubt. Raises UnsupportedModelError for outputs of no
    known kind, naming their shapes.
    """
    kind = DETECTORS[detector]
    if len(outputs) == 1 and outputs[0].ndim == 3:
        return _single(outputs[0], form, kind, num_labels, threshold)
    try:
        match _kind_of(outputs, num_labels) if kind in ("auto", "raw") else kind:
            case "v5" | "v7" if len(outputs) == len(STRIDES):
                return anchored(outputs, form, v7=DETECTORS[detector] == "v7", threshold=threshold)
            case "v8" if len(outputs) in (6, 9):
                return anchor_free(outputs, form, threshold=threshold)
            case "yolox" if len(outputs) == len(STRIDES):
                return yolox(outputs, form, threshold=threshold)
    except (ValueError, IndexError) as error:
        raise _unknown(outputs, detector) from error
    raise _unknown(outputs, detector)


def _kind_of(outputs: Sequence[NDArray[np.float32]], num_labels: int) -> str | None:
    if len(outputs) in (6, 9) and all(output.ndim == 4 for output in outputs):
        return "v8"
    if len(outputs) != len(STRIDES):
        return None
    if all(output.ndim == 5 for output in outputs):
        return "v5"
    channels = {output.shape[1] for output in outputs if output.ndim == 4}
    if len(channels) != 1:
        return None
    # Three anchors of 5 + n values, or one; without labels, whatever can be three anchors is.
    count = channels.pop()
    if num_labels:
        return {3 * (5 + num_labels): "v5", 5 + num_labels: "yolox"}.get(count)
    return "v5" if count % 3 == 0 and count >= 18 else "yolox"


def _single(output: NDArray[np.float32], form: InputForm, kind: str, num_labels: int, threshold: float) -> Candidates:
    """One output for all strides; its longer axis counts the boxes.

    As many as there are cells: YOLOX's own order of axes has objectness and offsets from cells, v8's other order has
    neither. Three times as many: v5 and v7, decoded, with objectness.
    """
    num_cells = sum((form.height // stride) * (form.width // stride) for stride in STRIDES)
    lengths = (num_cells, 3 * num_cells)
    if output.shape[0] != 1 or (output.shape[1] not in lengths and output.shape[2] not in lengths):
        raise _unknown([output], kind)
    is_turned = output.shape[2] in lengths and output.shape[1] not in lengths
    rows = output.transpose(0, 2, 1) if is_turned else output
    num_values = rows.shape[2]
    if num_values < 5:
        raise _unknown([output], kind)
    if rows.shape[1] == 3 * num_cells:
        return decoded(rows, with_objectness=True, threshold=threshold)
    if kind == "yolox" or (kind == "auto" and not is_turned and num_values != 4 + num_labels):
        return yolox([rows], form, threshold=threshold)
    return decoded(rows, with_objectness=num_labels > 0 and num_values == 5 + num_labels, threshold=threshold)


def _unknown(outputs: Sequence[NDArray[np.float32]], detector: str) -> UnsupportedModelError:
    shapes = ", ".join(str(list(output.shape)) for output in outputs[:9])
    return UnsupportedModelError(
        f"the detector's outputs {shapes} are of no kind that is known here (detector {detector}); export it as"
        " YOLOv5, v7, v8, v11 or YOLOX without suppression, and set [vision] detector and input_size"
    )
