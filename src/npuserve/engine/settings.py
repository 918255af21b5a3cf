"""The engine's settings."""

from dataclasses import dataclass

from npuserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How requests share the device; a device with fewer slots or rows limits what is asked for here.

    `num_slots` requests run at once, `max_queue` more may wait. A prompt is fed `chunk_size` rows a step,
    in steps of its own, or with `mixed` in the rows that a decode step leaves spare.
    """

    num_slots: int = 8
    chunk_size: int = 64
    mixed: bool = False
    max_queue: int = 256

    def __post_init__(self) -> None:
        for name, value, least in (
            ("num_slots", self.num_slots, 1),
            ("chunk_size", self.chunk_size, 1),
            ("max_queue", self.max_queue, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be {least} or more")
