"""kiln-serve's vision model."""

from pathlib import Path

from npuserve.cli.kiln_settings import KilnSettings
from npuserve.home import expanded
from npuserve.server.vision_service import VisionService
from npuserve.vision.loading import VisionSettings, load_vision, parse_channels, parse_size

_DEFAULT_LABELS = KilnSettings.__dataclass_fields__["labels"].default


def load_vision_service(settings: KilnSettings, path: Path) -> VisionService:
    """Load `path`. Labels that the settings do not name need not be there.

    Raises CheckpointError, ConfigError, DeviceUnavailableError.
    """
    wanted = VisionSettings(
        task=settings.task,
        detector=settings.detector,
        labels=expanded(settings.labels),
        labels_must_exist=settings.labels != _DEFAULT_LABELS,
        core_mask=settings.core_mask,
        priority=settings.priority,
        input_size=parse_size(settings.input_size),
        mean=parse_channels(settings.mean, "mean"),
        deviation=parse_channels(settings.std, "std"),
    )
    return VisionService(
        load_vision(path, wanted),
        top_n=settings.top_n,
        threshold=settings.conf_threshold,
        most_overlap=settings.nms_iou,
    )
