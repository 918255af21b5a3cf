"""The engine's settings."""

from dataclasses import dataclass

from npuserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How requests share the device; a device with fewer slots or rows limits what is asked for here.

    `num_slots` requests run at once, `max_queue` more may wait. A prompt is fed `chunk_size` rows a step,
    in steps of its own, or with `mixed` in the rows that a decode step leaves spare. Families with recurrent state
    run `max_running` requests in turns of `quantum` rows, if there is a store to swap their contexts through.
    """

    num_slots: int = 8
    chunk_size: int = 64
    mixed: bool = False
    max_queue: int = 256
    max_running: int = 8
    quantum: int = 32

    def __post_init__(self) -> None:
        for name, value, least in (
            ("num_slots", self.num_slots, 1),
            ("chunk_size", self.chunk_size, 1),
            ("max_queue", self.max_queue, 0),
            ("max_running", self.max_running, 1),
            ("quantum", self.quantum, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be {least} or more")
