"""Who runs next: the queue, the slots and the choice of rows. Knows no device, clock, file or log."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from npuserve.core import PAGE_TOKENS, Event, FinishReason, Row, Timings
from npuserve.devices.base import Capabilities
from npuserve.engine.sequence import Sequence
from npuserve.engine.settings import EngineSettings
from npuserve.engine.slots import Context, SlotTable
from npuserve.engine.waiting_line import WaitingLine
from npuserve.errors import OverloadedError, RequestError

_NO_TIMINGS = Timings()


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step and whose they are: `parts` lists (sequence, number of its rows) in row order."""

    rows: list[Row]
    parts: list[tuple[Sequence, int]]

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences whose next token the step's logits decide, in the order of the logits."""
        return [sequence for sequence, count in self.parts if count == sequence.num_pending]


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that was given a slot, and the context that its rows will overwrite there, if there is one."""

    sequence: Sequence
    slot: int
    displaced: Context | None


class Scheduler:
    """First come, first served, with four verbs: add, admit, schedule, complete; each accepted request ends once.

    A sequence with one pending token is ready: all ready ones share a step, as decode rows do. Those with more
    are behind: the oldest of them catches up by at most `chunk_size` rows a step. Without `mixed` the two kinds
    of step take turns, so neither waits for more than one of the other; with it the rows behind ride along in
    what the ready ones leave of the device's rows, which is at least one. Those whose context is being restored
    have no rows.

    A family with recurrent state has one slot. With `swaps`, as contexts can be taken out and brought back, up to
    `max_running` sequences use it in turns of `quantum` rows (a chunk at least; rows that only make up for a context
    that was lost do not count, so every turn gets somewhere). Rows then stop at the end of each page, as only there the
    state can be saved with it. `num_stored` tells how much of a sequence is saved elsewhere.
    """

    def __init__(
        self,
        settings: EngineSettings,
        capabilities: Capabilities,
        *,
        swaps: bool = False,
        num_stored: Callable[[Sequence], int] | None = None,
    ) -> None:
        self._max_rows = capabilities.max_rows
        self._context_length = capabilities.context_length
        # No more slots than rows: every ready sequence has a row in every decode step.
        num_slots = min(settings.num_slots, capabilities.num_slots, capabilities.max_rows)
        self._slots = SlotTable(num_slots, recurrent=capabilities.recurrent)
        self._chunk_size = min(settings.chunk_size, capabilities.max_rows)
        self._mixed = settings.mixed
        self._max_queue = settings.max_queue
        self._quantum = settings.quantum
        self._takes_turns = self._stops_at_pages = swaps and capabilities.recurrent
        self._most_running = settings.max_running if self._takes_turns else num_slots
        self._line = WaitingLine(self._most_running)
        self._num_stored = num_stored
        self._running: list[Sequence] = []
        self._alive: dict[str, Sequence] = {}
        self._was_catching_up = False

    @property
    def num_slots(self) -> int:
        return self._slots.num_slots

    @property
    def queued(self) -> tuple[Sequence, ...]:
        return self._line.queued

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold a slot, oldest first."""
        return tuple(self._running)

    @property
    def paused(self) -> tuple[Sequence, ...]:
        """Sequences that have had a turn and wait for another."""
        return self._line.paused

    @property
    def next_to_start(self) -> Sequence | None:
        """The sequence that is next to catch up, if it has had no row yet."""
        behind = next((s for s in self._running if s.num_pending > 1 and not s.is_restoring), None)
        return None if behind is None or behind.is_counted else behind

    @property
    def can_run(self) -> bool:
        """Whether a step or an admission is possible now."""
        if any(not sequence.is_restoring for sequence in self._running):
            return True
        return self._slots.num_free > 0 and self._line.has_next(len(self._running))

    @property
    def alive(self) -> tuple[Sequence, ...]:
        """Every sequence that has not ended, oldest first."""
        return tuple(self._alive.values())

    def __contains__(self, request_id: str) -> bool:
        """Whether that request is waiting or running."""
        return request_id in self._alive

    def add(self, sequence: Sequence) -> None:
        """Put `sequence` at the end of the queue.

        Raises OverloadedError when the slots and a queue of `max_queue` are taken, RequestError when its id is alive.
        """
        if sequence.id in self:
            raise RequestError(f"request id {sequence.id} is in use; choose another", code="duplicate_request_id")
        limit = self._most_running + self._max_queue
        if len(self._alive) >= limit:
            raise OverloadedError(
                f"{len(self._alive)} requests are running or waiting and the server takes {limit};"
                " try again later or start it with a larger --max-queue"
            )
        self._line.add(sequence)
        self._alive[sequence.id] = sequence

    def admit(self, now_s: float) -> list[Admission]:
        """End a turn that is over and give free slots away, so that none lies idle while somebody waits."""
        self._end_turns(now_s)
        admitted = []
        while self._slots.num_free and (sequence := self._line.pop(len(self._running))) is not None:
            num_stored = self._num_stored(sequence) if self._num_stored else None
            slot, num_cached, displaced = self._slots.acquire(sequence.tokens, sequence.request.cache_salt, num_stored)
            sequence.admit(slot, num_cached, now_s)
            self._running.append(sequence)
            admitted.append(Admission(sequence, slot, displaced))
        return admitted

    def schedule(self) -> Batch:
        """Choose the rows of the next step; none when nothing runs."""
        present = [sequence for sequence in self._running if not sequence.is_restoring]
        ready = [sequence for sequence in present if sequence.num_pending == 1]
        behind = next((sequence for sequence in present if sequence.num_pending > 1), None)
        if not self._mixed and ready and behind is not None:
            # The two kinds take turns; the one whose turn it is not waits for one step.
            self._was_catching_up = not self._was_catching_up
            ready, behind = ([], behind) if self._was_catching_up else (ready, None)
        parts = [(sequence, 1) for sequence in ready]
        if behind is not None:
            parts.append((behind, self._chunk(behind, self._max_rows - len(ready))))
        rows = [row for sequence, count in parts for row in sequence.next_rows(count)]
        return Batch(rows, parts)

    def complete(self, batch: Batch, tokens: Mapping[str, int], now_s: float) -> list[Event]:
        """Book the rows of `batch` as run and the sampled `tokens` by request id; returns the news in row order.

        Every sequence of `batch.sampled` that is still alive has a token.
        """
        events = []
        for sequence, count in batch.parts:
            if sequence.finish is not None:
                continue
            is_sampled = count == sequence.num_pending
            sequence.note_run(count)
            if is_sampled:
                events.append(self._append(sequence, tokens[sequence.id], now_s))
        return events

    def cancel(self, request_id: str, now_s: float) -> list[Event]:
        """End a request wherever it is; no event when it is not alive."""
        sequence = self._alive.get(request_id)
        return [] if sequence is None else [self._end(sequence, FinishReason.CANCELLED, now_s)]

    def fail(self, sequences: Iterable[Sequence], error: str, now_s: float) -> list[Event]:
        """End those of `sequences` that are alive with `error`; what their slots hold is no longer trusted."""
        events = []
        for sequence in sequences:
            if sequence.finish is None:
                sequence.num_computed = 0
                events.append(self._end(sequence, FinishReason.FAILED, now_s, error=error))
        return events

    def expire(self, now_s: float) -> list[Event]:
        """End the requests whose deadline has passed."""
        late = [s for s in self._alive.values() if s.request.deadline_s is not None and now_s >= s.request.deadline_s]
        error = "the request's deadline passed before the reply was complete"
        return [self._end(sequence, FinishReason.CANCELLED, now_s, error=error) for sequence in late]

    def contexts(self) -> list[tuple[int, Context]]:
        """What the slots hold, as (slot, context): those in use first."""
        busy = [
            (s.slot, Context(s.tokens, s.num_computed, s.request.cache_salt, s.admitted_s or 0.0))
            for s in self._running
        ]
        return [(slot, context) for slot, context in busy if slot is not None] + self._slots.contexts()

    def forget_contexts(self) -> None:
        """Drop the contexts of finished requests from the free slots."""
        self._slots.forget()

    def check(self) -> None:
        """Raise AssertionError when the books do not add up."""
        owned = [sequence.slot for sequence in self._running]
        if len(set(owned)) != len(owned) or None in owned:
            raise AssertionError(f"running requests share or lack slots: {owned}")
        if len(owned) + self._slots.num_free != self.num_slots:
            raise AssertionError(f"{len(owned)} slots in use and {self._slots.num_free} free are not {self.num_slots}")
        if len(self._running) + len(self._line) != len(self._alive):
            raise AssertionError(
                f"{len(self._alive)} alive are not {len(self._running)} running, {len(self._line)} waiting"
            )

    def _end_turns(self, now_s: float) -> None:
        """Take the slot from a sequence that has had its rows, if somebody waits for it."""
        if not self._takes_turns:
            return
        for sequence in self.running:
            is_over = sequence.num_rows_in_turn >= self._quantum and not sequence.is_restoring
            if is_over and self._line.has_next(len(self._running)):
                self._running.remove(sequence)
                self._release(sequence, now_s)
                self._line.pause(sequence)

    def _chunk(self, sequence: Sequence, num_spare: int) -> int:
        """How many rows a sequence that is behind gets."""
        count = min(sequence.num_pending, self._chunk_size, num_spare)
        return min(count, PAGE_TOKENS - sequence.num_computed % PAGE_TOKENS) if self._stops_at_pages else count

    def _release(self, sequence: Sequence, now_s: float) -> None:
        assert sequence.slot is not None, f"{sequence.id} has no slot"
        warm = sequence.tokens[: sequence.num_computed]
        self._slots.release(sequence.slot, warm, sequence.request.cache_salt, now_s)
        sequence.slot = None

    def _append(self, sequence: Sequence, token: int, now_s: float) -> Event:
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        sampling = sequence.request.sampling
        if token in sampling.stop_token_ids:
            return self._end(sequence, FinishReason.STOP, now_s, stop_token_id=token)
        sequence.tokens.append(token)
        if sequence.num_generated >= sampling.max_tokens or len(sequence.tokens) >= self._context_length:
            return self._end(sequence, FinishReason.LENGTH, now_s, token_ids=(token,))
        logprobs, prompt_logprobs = sequence.take_logprobs()
        return Event(
            sequence.id,
            (token,),
            num_cached_tokens=sequence.num_cached,
            cache_source=sequence.cache_source,
            timings=_NO_TIMINGS,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _end(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now_s: float,
        *,
        token_ids: tuple[int, ...] = (),
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> Event:
        """Take `sequence` off the books, leaving its context warm in its slot."""
        sequence.finish = finish
        del self._alive[sequence.id]
        if sequence.slot is None:
            self._line.remove(sequence)
        else:
            self._running.remove(sequence)
            self._release(sequence, now_s)
        logprobs, prompt_logprobs = sequence.take_logprobs()
        return Event(
            sequence.id,
            token_ids,
            finish,
            stop_token_id,
            error,
            num_cached_tokens=sequence.num_cached,
            cache_source=sequence.cache_source,
            timings=sequence.timings(now_s),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
