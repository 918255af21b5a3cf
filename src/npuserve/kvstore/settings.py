"""The store's settings."""

from dataclasses import dataclass
from pathlib import Path

from npuserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Room for saved contexts: `ram_bytes` and `disk_bytes` (0: no such tier), the latter in `folder`.

    Pages waiting to be written to disk take `queue_bytes` at most; what does not fit is written when RAM gives it up.
    """

    ram_bytes: int = 4 << 30
    disk_bytes: int = 0
    folder: Path = Path("~/otpu-build/kvcache")
    queue_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name, value in (
            ("ram_bytes", self.ram_bytes),
            ("disk_bytes", self.disk_bytes),
            ("queue_bytes", self.queue_bytes),
        ):
            if value < 0:
                raise ConfigError(f"{name} is {value}; it must be 0 or more")
