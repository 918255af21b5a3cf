"""From a vision model's file and settings to a classifier or detector."""

from dataclasses import dataclass
from pathlib import Path

from npuserve.errors import ConfigError, UnsupportedModelError
from npuserve.vision.classifier import Classifier
from npuserve.vision.detector import Detector
from npuserve.vision.labels import Labels, read_labels
from npuserve.vision.network import InputForm, Network
from npuserve.vision.normalization import BYTES, BYTES_BGR, IMAGENET, UNIT, Normalization
from npuserve.vision.packages import check_packages

ENDINGS = (".rknn", ".onnx")
_OPEN_SIZE = {"classify": 224, "detect": 640}


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """`labels` that are not there are only missed when `labels_must_exist`. `mean`, `deviation` None: by task."""

    task: str = "classify"
    detector: str = "auto"
    labels: Path | None = None
    labels_must_exist: bool = False
    core_mask: str = "auto"
    priority: str = "high"
    input_size: tuple[int, int] | None = None
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None


def load_vision(path: Path, settings: VisionSettings) -> Classifier | Detector:
    """A ready model. Raises CheckpointError, DeviceUnavailableError, ConfigError."""
    check_packages()
    labels = Labels()
    if settings.labels is not None and (settings.labels_must_exist or settings.labels.exists()):
        labels = read_labels(settings.labels)
    network = _network(path, settings)
    normalization = _normalization(settings, network.form)
    if settings.task == "detect":
        return Detector(network, labels, normalization, settings.detector)
    return Classifier(network, labels, normalization)


def parse_size(text: str) -> tuple[int, int] | None:
    """(height, width) of `N`, `WxH` or `auto`, which is None. Raises ConfigError."""
    if text == "auto":
        return None
    parts = text.lower().split("x")
    if len(parts) in (1, 2) and all(part.strip().isdigit() and 8 <= int(part) <= 8192 for part in parts):
        return int(parts[-1]), int(parts[0])
    raise ConfigError(f"[vision] input_size = {text} is neither auto, nor N, nor WIDTHxHEIGHT")


def parse_channels(text: str, key: str) -> tuple[float, float, float] | None:
    """Three numbers of `auto`, which is None, `X` or `R, G, B`. Raises ConfigError."""
    if text == "auto":
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 3) or not all(abs(value) < 1e6 for value in values) or (key == "std" and 0.0 in values):
        raise ConfigError(f"[vision] {key} = {text} is neither auto, nor one number, nor three between commas")
    return (values[0], values[-1] if len(values) == 1 else values[1], values[-1])


def _network(path: Path, settings: VisionSettings) -> Network:
    match path.suffix.lower():
        case ".rknn":
            from npuserve.vision.rknn_network import RknnNetwork

            size = settings.input_size or (_OPEN_SIZE[settings.task],) * 2
            return RknnNetwork(path, size, settings.core_mask, settings.priority)
        case ".onnx":
            from npuserve.vision.onnx_network import OnnxNetwork

            return OnnxNetwork(path, settings.input_size or (_OPEN_SIZE[settings.task],) * 2)
        case _:
            raise UnsupportedModelError(f"{path}: a vision model ends in {' or '.join(ENDINGS)}")


def _normalization(settings: VisionSettings, form: InputForm) -> Normalization:
    """The settings' own values over those that the kind of model is trained with."""
    if form.is_normalized_inside:
        return BYTES
    usual = IMAGENET if settings.task == "classify" else BYTES_BGR if settings.detector == "yolox" else UNIT
    return Normalization(settings.mean or usual.mean, settings.deviation or usual.deviation, usual.is_bgr)
