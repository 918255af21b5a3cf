"""Counting what the engine does."""

from collections.abc import Iterable
from dataclasses import asdict

from npuserve.core import Event, FinishReason
from npuserve.engine.rate import Rate
from npuserve.engine.runner import Outcome
from npuserve.engine.scheduler import Scheduler
from npuserve.engine.sequence import Sequence
from npuserve.engine.stats import Counters, EngineStats, SlotState, SlotStats
from npuserve.kvstore.store import StoreStats


class Statistics:
    """The engine's counters and rates; its lock guards them."""

    def __init__(self, started_s: float) -> None:
        self.counters = Counters()
        self._started_s = started_s
        self._in, self._out, self._device = Rate(started_s), Rate(started_s), Rate(started_s)

    def add_scheduling(self, seconds: float) -> None:
        self.counters.scheduling_s += seconds

    def count_started(self, sequences: Iterable[Sequence], now_s: float) -> None:
        """Count the prompts of sequences that have rows for the first time."""
        for sequence in sequences:
            if not sequence.is_counted:
                sequence.is_counted = True
                self.counters.num_tokens_in += len(sequence.request.prompt_ids)
                self.counters.num_tokens_cached += sequence.num_cached
                self._in.add(len(sequence.request.prompt_ids), now_s)

    def count_step(self, outcome: Outcome, now_s: float) -> None:
        """Count a step that ended now."""
        counters = self.counters
        counters.num_steps += 1
        counters.num_tokens_out += len(outcome.tokens)
        counters.program_s += outcome.program_s
        counters.device_s += outcome.device_s
        counters.sampling_s += outcome.sampling_s
        counters.last_step_s = now_s
        self._out.add(len(outcome.tokens), now_s)
        self._device.add(outcome.device_s, now_s)

    def count_ends(self, events: Iterable[Event]) -> None:
        """Count how requests ended."""
        for event in events:
            self.counters.num_requests_cancelled += event.finish is FinishReason.CANCELLED
            self.counters.num_requests_failed += event.finish is FinishReason.FAILED

    def picture(self, scheduler: Scheduler, store: StoreStats | None, now_s: float) -> EngineStats:
        """All of it at this moment."""
        busy = tuple(_busy_slot(sequence, now_s) for sequence in scheduler.running)
        taken = {slot.slot for slot in busy}
        warm = [
            SlotStats(slot, "", context.num_tokens, now_s - context.since_s, "warm")
            for slot, context in scheduler.contexts()
            if slot not in taken
        ]
        uptime_s = now_s - self._started_s
        return EngineStats(
            num_queued=len(scheduler.queued),
            num_running=len(busy) + len(scheduler.paused),
            num_slots=scheduler.num_slots,
            slots=busy,
            warm_slots=tuple(warm),
            tokens_in_per_s=self._in.per_s(now_s),
            tokens_out_per_s=self._out.per_s(now_s),
            uptime_s=uptime_s,
            device_share=self.counters.device_s / uptime_s if uptime_s > 0 else 0.0,
            recent_device_share=self._device.per_s(now_s),
            stalled_s=self._stalled_s(busy, now_s),
            store=store,
            **asdict(self.counters),
        )

    def _stalled_s(self, busy: tuple[SlotStats, ...], now_s: float) -> float:
        """Since the last step, or since the first of those who run began to wait for one."""
        if not busy:
            return 0.0
        waiting_s = max(slot.age_s for slot in busy)
        last_step_s = self.counters.last_step_s
        return waiting_s if last_step_s is None else min(waiting_s, now_s - last_step_s)


def _busy_slot(sequence: Sequence, now_s: float) -> SlotStats:
    state: SlotState = "decode"
    if sequence.is_restoring:
        state = "restoring"
    elif sequence.num_pending > 1:
        state = "prefill"
    assert sequence.slot is not None, f"{sequence.id} has no slot"
    age_s = 0.0 if sequence.admitted_s is None else now_s - sequence.admitted_s
    return SlotStats(sequence.slot, sequence.id, sequence.num_computed, age_s, state)
