"""What the engine tells about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotStats:
    """One busy slot: whose it is, how many tokens it holds, seconds since it was given away."""

    slot: int
    request_id: str
    num_tokens: int
    age_s: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since start, and where the engine thread's time went.

    `num_tokens_in` are prompt tokens of admitted requests, of which `num_tokens_cached` were in a warm slot;
    `num_tokens_out` are tokens generated, stop tokens included. `last_step_s` is the clock's time at the end of the
    last step, None before the first.
    """

    num_queued: int = 0
    num_running: int = 0
    num_slots: int = 0
    slots: tuple[SlotStats, ...] = ()
    num_requests: int = 0
    num_tokens_in: int = 0
    num_tokens_cached: int = 0
    num_tokens_out: int = 0
    num_steps: int = 0
    num_failed_steps: int = 0
    scheduling_s: float = 0.0
    program_s: float = 0.0
    device_s: float = 0.0
    sampling_s: float = 0.0
    last_step_s: float | None = None


@dataclass(slots=True)
class Counters:
    """The running totals behind EngineStats; its fields are copied there by name."""

    num_requests: int = 0
    num_tokens_in: int = 0
    num_tokens_cached: int = 0
    num_tokens_out: int = 0
    num_steps: int = 0
    num_failed_steps: int = 0
    scheduling_s: float = 0.0
    program_s: float = 0.0
    device_s: float = 0.0
    sampling_s: float = 0.0
    last_step_s: float | None = None
