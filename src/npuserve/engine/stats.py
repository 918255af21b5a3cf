"""What the engine tells about itself."""

from dataclasses import dataclass
from typing import Literal

from npuserve.kvstore.store import StoreStats

SlotState = Literal["restoring", "prefill", "decode", "warm"]


@dataclass(frozen=True, slots=True)
class SlotStats:
    """One slot: whose it is, how many tokens it holds, seconds since it was given away.

    A `warm` one has no owner; its age counts from when it was let go.
    """

    slot: int
    request_id: str
    num_tokens: int
    age_s: float
    state: SlotState = "decode"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since start, and where the engine thread's time went.

    `slots` are the busy ones and `warm_slots` the free ones that hold a context; running requests without a slot are
    between two turns. `num_tokens_in` are prompt tokens of admitted requests, of which `num_tokens_cached` were in a
    warm slot or in the store; `num_tokens_out` are tokens generated, stop tokens included. The rates are of the last
    10 s. `device_share` is the part of the uptime that the device worked, `recent_device_share` that of the last 10 s.
    `last_step_s` is the clock's time at the end of the last step, None before the first; `stalled_s` how long requests
    have been running without the end of a step. `store` is None without one.
    """

    num_queued: int = 0
    num_running: int = 0
    num_slots: int = 0
    slots: tuple[SlotStats, ...] = ()
    warm_slots: tuple[SlotStats, ...] = ()
    tokens_in_per_s: float = 0.0
    tokens_out_per_s: float = 0.0
    uptime_s: float = 0.0
    device_share: float = 0.0
    recent_device_share: float = 0.0
    stalled_s: float = 0.0
    store: StoreStats | None = None
    num_requests: int = 0
    num_tokens_in: int = 0
    num_tokens_cached: int = 0
    num_tokens_out: int = 0
    num_requests_cancelled: int = 0
    num_requests_failed: int = 0
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
    num_requests_cancelled: int = 0
    num_requests_failed: int = 0
    num_steps: int = 0
    num_failed_steps: int = 0
    scheduling_s: float = 0.0
    program_s: float = 0.0
    device_s: float = 0.0
    sampling_s: float = 0.0
    last_step_s: float | None = None
