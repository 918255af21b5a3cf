"""The one loop: the one thread that touches the device."""

import logging
import threading
import time
from collections.abc import Callable

from npuserve.core import CacheSource, Event, Request
from npuserve.devices.base import Device
from npuserve.engine import runner
from npuserve.engine.contexts import Contexts, NoContexts, StoredContexts
from npuserve.engine.request_check import check_request
from npuserve.engine.scheduler import Batch, Scheduler
from npuserve.engine.sequence import Sequence
from npuserve.engine.settings import EngineSettings
from npuserve.engine.statistics import Statistics
from npuserve.engine.stats import EngineStats
from npuserve.errors import DeviceError, DeviceUnavailableError, OverloadedError
from npuserve.kvstore.store import ContextStore

_log = logging.getLogger(__name__)

# A device that failed this many steps in a row will not recover by itself.
_MAX_FAILED_STEPS = 3
# How long a step that was running when the engine was told to stop may still take.
_LAST_STEP_S = 30.0
# How often deadlines are looked at while nothing else happens.
_DEADLINE_S = 0.05
# The store's books are long; they are not checked whenever the engine falls idle.
_CHECK_STORE_S = 10.0
# Steps of fewer rows say little of how fast prompts are fed.
_PREFILL_ROWS = 16


class Engine:
    """Runs requests on `device` from `start` to `stop`; every public method may be called from any thread.

    `deliver` gets the events of a step in one call, from the engine's thread, when the next step runs or there is none
    (before a step of many rows): whoever it wakes works beside the device and does not hold up the step. It must be
    quick and may not call back into the engine. Events of one request come in order, and exactly one of them has
    `finish` set. Device and store belong to the engine while it runs; whoever opened them closes them after `stop`.
    Without a store, or for a device without pages, contexts live in the slots only. `on_failure` is called once, from
    the engine's thread, with the reason when the device is given up.
    """

    def __init__(
        self,
        device: Device,
        settings: EngineSettings,
        deliver: Callable[[list[Event]], None],
        *,
        store: ContextStore | None = None,
        on_failure: Callable[[str], None] = lambda failure: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._capabilities = device.capabilities
        self._deliver_events = deliver
        self._clock = clock
        # The condition guards everything below; the thread lets go of it while the device or the sampler works.
        self._wake = threading.Condition()
        self._on_failure = on_failure
        self._contexts: Contexts = NoContexts()
        if store is not None and device.capabilities.page_bytes:
            self._contexts = StoredContexts(device, store, self._wake, self._notify)
        num_stored = self._contexts.num_stored
        self._scheduler = Scheduler(settings, device.capabilities, swaps=num_stored is not None, num_stored=num_stored)
        self._checked_store_s = clock()
        self._cancelled: list[str] = []
        # The thread's own: events that wait for the device to be at work.
        self._news: list[Event] = []
        self._statistics = Statistics(clock())
        self._num_failures_in_row = 0
        self._failure: str | None = None
        self._stop_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def failed(self) -> bool:
        """True once the device was given up; nothing new is taken and nothing is alive."""
        return self._failure is not None

    @property
    def healthy(self) -> bool:
        """True while new requests are taken, a full queue aside."""
        return self._thread.is_alive() and self._failure is None and self._stop_at_s is None

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self, grace_s: float = 0.0) -> bool:
        """Refuse new work, let what is alive run for `grace_s` seconds, fail the rest, wait for the thread.

        False when the device still hangs in a step 30 s after that; it must not be closed then. May be called again,
        with less grace.
        """
        with self._wake:
            stop_at_s = self._clock() + grace_s
            self._stop_at_s = stop_at_s if self._stop_at_s is None else min(stop_at_s, self._stop_at_s)
            self._wake.notify_all()
        if self._thread.ident is None:
            # Never started: what was accepted must end all the same.
            self._run()
            return True
        self._thread.join(grace_s + _LAST_STEP_S)
        return not self._thread.is_alive()

    def submit(self, request: Request) -> None:
        """Accept `request`: from now on it ends in exactly one final event.

        Raises OverloadedError when the queue is full or the engine is stopping, DeviceUnavailableError when it has
        failed, ContextLengthError for a prompt that leaves no room for a token, RequestError for an id in use and for
        what the device cannot be fed.
        """
        check_request(request, self._capabilities)
        sequence = Sequence(request)
        with self._wake:
            if self._failure is not None:
                raise DeviceUnavailableError(self._failure)
            if self._stop_at_s is not None:
                raise OverloadedError("the server is stopping; send the request to another or try again later")
            self._scheduler.add(sequence)
            self._statistics.counters.num_requests += 1
            self._wake.notify_all()

    def cancel(self, request_id: str) -> None:
        """End a request before its next step, in whatever phase it is; nothing happens when it has ended."""
        with self._wake:
            if request_id in self._scheduler:
                self._cancelled.append(request_id)
                self._wake.notify_all()

    def cancel_all(self) -> int:
        """End every request before the next step; how many there are."""
        with self._wake:
            alive = [sequence.id for sequence in self._scheduler.alive]
            self._cancelled += alive
            self._wake.notify_all()
            return len(alive)

    def forget_contexts(self, tier: CacheSource | None = None) -> bool:
        """Drop the contexts of finished requests, all or those of one tier; False, and nothing done, while any runs."""
        with self._wake:
            if self._scheduler.alive:
                return False
            if tier in (None, CacheSource.SLOT):
                self._scheduler.forget_contexts()
            # What is flushed from the store must not come back from the slots at once.
            self._contexts.forget()
        if tier is not CacheSource.SLOT:
            self._contexts.flush(tier)
        return True

    def stats(self) -> EngineStats:
        """A consistent picture of this moment."""
        store = self._contexts.stats()
        with self._wake:
            return self._statistics.picture(self._scheduler, store, self._clock())

    def _run(self) -> None:
        """The thread: rounds until it is told to stop; a fault of our own fails everything rather than hang it."""
        try:
            while self._round():
                pass
        except Exception:
            _log.exception("the engine's loop broke")
            with self._wake:
                self._news += self._give_up("the engine broke; see the server's log and restart it")
        self._deliver()

    def _round(self) -> bool:
        """Wait for work, then move some pages and run one step; False when the engine is to end."""
        with self._wake:
            is_idle = not self._is_due()
        if is_idle:
            self._deliver()
        with self._wake:
            self._wait()
            started_s = self._clock()
            self._news += self._apply_cancels(started_s) + self._scheduler.expire(started_s)
            alive = self._scheduler.alive
            over = self._stop_at_s is not None and (started_s >= self._stop_at_s or not alive)
            if over:
                self._news += self._scheduler.fail(alive, "the server stopped before the reply was complete", started_s)
            admissions = self._scheduler.admit(started_s)
            self._contexts.begin(admissions)
            if (waiting := self._scheduler.next_to_start) is not None:
                self._contexts.reconsider(waiting)
            self._statistics.add_scheduling(self._clock() - started_s)
        if admissions:
            # Their contexts are moved first, which takes a while.
            self._deliver()
        self._move_contexts()
        with self._wake:
            started_s = self._clock()
            batch = self._scheduler.schedule()
            self._statistics.count_started([sequence for sequence, _ in batch.parts], started_s)
            self._statistics.add_scheduling(self._clock() - started_s)
        if len(batch.rows) >= _PREFILL_ROWS:
            # A long step: what streams wait for should not have to find a processor while it runs.
            self._deliver()
        if batch.rows:
            # In two steps: running the device hands over what was there before.
            events = self._step(batch)
            self._news += events
        with self._wake:
            is_due = self._contexts.is_due(self._scheduler.contexts)
        if is_due:
            self._deliver()
            (self._contexts.save_all if over else self._contexts.save)(self._scheduler.contexts)
        return not over

    def _wait(self) -> None:
        """Sleep until there is something to do, having checked that the books add up when nothing is alive."""
        while not self._is_due():
            if self._scheduler.alive:
                # Every context is on its way from disk; deadlines do not wake anybody.
                if not self._wake.wait(_DEADLINE_S):
                    return
            else:
                self._check_books()
                self._wake.wait()

    def _is_due(self) -> bool:
        return bool(
            self._cancelled
            or self._stop_at_s is not None
            or self._scheduler.can_run
            or self._contexts.is_due(self._scheduler.contexts)
        )

    def _check_books(self) -> None:
        self._scheduler.check()
        if (now_s := self._clock()) < self._checked_store_s + _CHECK_STORE_S:
            return
        self._checked_store_s = now_s
        try:
            self._contexts.check()
        except AssertionError as error:
            _log.critical("the books of saved contexts do not add up, so all are dropped: %s", error)
            self._scheduler.forget_contexts()
            self._contexts.forget()
            self._contexts.flush(None)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _apply_cancels(self, now_s: float) -> list[Event]:
        events = [event for request_id in self._cancelled for event in self._scheduler.cancel(request_id, now_s)]
        self._cancelled.clear()
        return events

    def _move_contexts(self) -> None:
        faults = self._contexts.move(others_wait=self._scheduler.can_run)
        for sequence, error in faults:
            _log.error("restoring the context of request %s failed: %s", sequence.id, error)
            with self._wake:
                self._news += self._fail([sequence], error)

    def _step(self, batch: Batch) -> list[Event]:
        """Run `batch`; a device error ends its requests, too many in a row all requests."""
        started_s = self._clock()
        try:
            outcome = runner.run(self._device, batch, self._clock, self._deliver)
        except DeviceError as error:
            _log.error("a device step of %d rows failed: %s", len(batch.rows), error)
            with self._wake:
                return self._fail([sequence for sequence, _ in batch.parts], error)
        if (num_rows := len(batch.rows)) >= _PREFILL_ROWS:
            self._contexts.note_prefill(num_rows, self._clock() - started_s)
        with self._wake:
            return self._complete_step(batch, outcome)

    def _complete_step(self, batch: Batch, outcome: runner.Outcome) -> list[Event]:
        started_s = self._clock()
        self._num_failures_in_row = 0
        self._statistics.count_step(outcome, started_s)
        events: list[Event] = []
        for sequence, error in outcome.faults:
            events += self._scheduler.fail([sequence], str(error), started_s)
        events += self._scheduler.complete(batch, outcome.tokens, started_s)
        self._statistics.add_scheduling(self._clock() - started_s)
        return events

    def _fail(self, sequences: list[Sequence], error: DeviceError) -> list[Event]:
        """End the requests that the device failed; the caller holds the lock."""
        self._statistics.counters.num_failed_steps += 1
        self._num_failures_in_row += 1
        message = f"the device failed while it worked on this request: {error}"
        events = self._scheduler.fail(sequences, message, self._clock())
        if isinstance(error, DeviceUnavailableError) or self._num_failures_in_row >= _MAX_FAILED_STEPS:
            events += self._give_up(f"the device was given up: {error}; restart the server")
        return events

    def _give_up(self, failure: str) -> list[Event]:
        """Take no more work and end what is alive; the caller holds the lock."""
        _log.critical("%s", failure)
        first, self._failure = self._failure is None, failure
        # There is nothing to save any more.
        self._scheduler.forget_contexts()
        self._contexts.forget()
        if first:
            self._on_failure(failure)
        return self._scheduler.fail(self._scheduler.alive, failure, self._clock())

    def _deliver(self) -> None:
        if not self._news:
            return
        events, self._news = self._news, []
        self._statistics.count_ends(events)
        try:
            self._deliver_events(events)
        except Exception:
            _log.exception("%d events could not be delivered", len(events))
