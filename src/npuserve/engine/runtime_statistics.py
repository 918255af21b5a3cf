"""Counting what an engine does whose runtime makes one whole reply at a time."""

from dataclasses import asdict

from npuserve.core import Event, FinishReason
from npuserve.engine.rate import Rate
from npuserve.engine.runtime_run import RuntimeRun
from npuserve.engine.stats import Counters, EngineStats, SlotStats


class RuntimeStatistics:
    """The engine's counters and rates; its lock guards them. A step is one token of a reply."""

    def __init__(self, started_s: float) -> None:
        self.counters = Counters()
        self._started_s = started_s
        self._in, self._out, self._device = Rate(started_s), Rate(started_s), Rate(started_s)

    def count_started(self, run: RuntimeRun, now_s: float) -> None:
        """Count the prompt of a run that begins now, by our own estimate where it is text."""
        self.counters.num_tokens_in += len(run.request.prompt_ids)
        self._in.add(len(run.request.prompt_ids), now_s)

    def count_token(self, now_s: float) -> None:
        self.counters.num_steps += 1
        self.counters.num_tokens_out += 1
        self.counters.last_step_s = now_s
        self._out.add(1, now_s)

    def count_run(self, device_s: float, now_s: float) -> None:
        """Count the time of a run that has returned."""
        self.counters.device_s += device_s
        self._device.add(device_s, now_s)

    def count_end(self, event: Event) -> None:
        """Count how a request ended."""
        self.counters.num_requests_cancelled += event.finish is FinishReason.CANCELLED
        self.counters.num_requests_failed += event.finish is FinishReason.FAILED

    def picture(self, run: RuntimeRun | None, num_queued: int, now_s: float) -> EngineStats:
        """All of it at this moment; `run` is inside the runtime."""
        uptime_s = now_s - self._started_s
        slots: tuple[SlotStats, ...] = ()
        stalled_s = 0.0
        if run is not None and run.started_s is not None:
            stalled_s = age_s = now_s - run.started_s
            num_tokens = len(run.request.prompt_ids) + run.num_generated
            slots = (SlotStats(0, run.id, num_tokens, age_s, "decode" if run.num_generated else "prefill"),)
            if self.counters.last_step_s is not None:
                stalled_s = min(age_s, now_s - self.counters.last_step_s)
        return EngineStats(
            num_queued=num_queued,
            num_running=len(slots),
            num_slots=1,
            slots=slots,
            tokens_in_per_s=self._in.per_s(now_s),
            tokens_out_per_s=self._out.per_s(now_s),
            uptime_s=uptime_s,
            device_share=self.counters.device_s / uptime_s if uptime_s > 0 else 0.0,
            recent_device_share=min(self._device.per_s(now_s), 1.0),
            stalled_s=stalled_s,
            **asdict(self.counters),
        )
