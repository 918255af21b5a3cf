"""The engine for a runtime that keeps its own loop: a queue in front, one generation at a time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from npuserve.core import CacheSource, Event, FinishReason, Request
from npuserve.devices.runtime import Runtime, RuntimePiece, RuntimeUsage
from npuserve.engine.runtime_request import check_request
from npuserve.engine.runtime_run import PieceBytes, RuntimeRun
from npuserve.engine.runtime_statistics import RuntimeStatistics
from npuserve.engine.stats import EngineStats
from npuserve.errors import DeviceError, DeviceUnavailableError, NpuserveError, OverloadedError, RequestError
from npuserve.text.text_ids import joined_text

_log = logging.getLogger(__name__)

# A runtime that failed this many runs in a row will not recover by itself.
_MAX_FAILED_RUNS = 3
# An abort that comes before the runtime's loop has begun is lost, so it is repeated until the run has ended.
_ABORT_AGAIN_S = 0.1
# How long the last event waits for the run's return, which brings the number of the prompt's tokens.
_PATIENCE_S = 1.0
_LAST_RUN_S = 30.0


@dataclass(frozen=True, slots=True)
class RuntimeTexts:
    """What is known of the model's text: what ends a turn, as text and as ids, and the bytes of its tokens."""

    end_markers: Sequence[str]
    end_ids: frozenset[int]
    token_bytes: PieceBytes


class RuntimeEngine:
    """Runs requests on `runtime`, first come, first served; see `Engine` for what the methods promise.

    Two threads: one is inside the runtime while a reply is made, the other aborts runs that are over for us. Events
    are delivered under the lock, by whichever thread ends the request, so that the last one is the last.
    """

    def __init__(
        self,
        runtime: Runtime,
        texts: RuntimeTexts,
        deliver: Callable[[list[Event]], None],
        *,
        max_queue: int = 256,
        on_failure: Callable[[str], None] = lambda failure: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._can = runtime.capabilities
        self._texts = texts
        self._deliver_events = deliver
        self._max_queue = max_queue
        self._on_failure = on_failure
        self._clock = clock
        # The condition guards everything below.
        self._wake = threading.Condition()
        self._queue: deque[RuntimeRun] = deque()
        self._current: RuntimeRun | None = None
        self._last_event: Event | None = None
        self._aborting = False
        self._statistics = RuntimeStatistics(clock())
        self._num_failures_in_row = 0
        self._failure: str | None = None
        self._stop_at_s: float | None = None
        self._over = False
        self._threads = (
            threading.Thread(target=self._run_all, name="engine", daemon=True),
            threading.Thread(target=self._watch, name="engine-watch", daemon=True),
        )

    @property
    def failed(self) -> bool:
        """True once the runtime was given up."""
        return self._failure is not None

    @property
    def healthy(self) -> bool:
        """True while new requests are taken, a full queue aside."""
        return self._threads[0].is_alive() and self._failure is None and self._stop_at_s is None

    def start(self) -> None:
        """Start the threads; once."""
        for thread in self._threads:
            thread.start()

    def stop(self, grace_s: float = 0.0) -> bool:
        """See `Engine.stop`."""
        with self._wake:
            stop_at_s = self._clock() + grace_s
            self._stop_at_s = stop_at_s if self._stop_at_s is None else min(stop_at_s, self._stop_at_s)
            self._wake.notify_all()
            if self._threads[0].ident is None:
                self._end_late(self._clock())
                return True
        for thread in self._threads:
            thread.join(grace_s + _LAST_RUN_S)
        return not any(thread.is_alive() for thread in self._threads)

    def submit(self, request: Request) -> None:
        """See `Engine.submit`; RequestError also for what the runtime cannot honour."""
        check_request(request, self._can.context_length)
        run = RuntimeRun(request, self._end_markers(request), self._texts.token_bytes)
        with self._wake:
            if self._failure is not None:
                raise DeviceUnavailableError(self._failure)
            if self._stop_at_s is not None:
                raise OverloadedError("the server is stopping; send the request to another or try again later")
            if any(run.id == request.id for run in self._alive()):
                raise RequestError(f"request id {request.id} is in use; choose another", code="duplicate_request_id")
            if len(self._alive()) > self._max_queue:
                raise OverloadedError(
                    f"{len(self._alive())} requests are running or waiting and the server takes {self._max_queue + 1};"
                    " try again later or start it with a larger --max-queue"
                )
            self._queue.append(run)
            self._statistics.counters.num_requests += 1
            self._wake.notify_all()

    def cancel(self, request_id: str) -> None:
        """End a request now; the runtime is aborted beside it."""
        with self._wake:
            for run in self._alive():
                if run.id == request_id:
                    self._end(run, FinishReason.CANCELLED)

    def cancel_all(self) -> int:
        """See `Engine.cancel_all`."""
        with self._wake:
            alive = self._alive()
            for run in alive:
                self._end(run, FinishReason.CANCELLED)
            return len(alive)

    def forget_contexts(self, tier: CacheSource | None = None) -> bool:
        """Nothing is kept from one run to the next; False while any request is alive."""
        with self._wake:
            return not self._alive()

    def stats(self) -> EngineStats:
        """A consistent picture of this moment."""
        with self._wake:
            return self._statistics.picture(self._current, len(self._queue), self._clock())

    def _end_markers(self, request: Request) -> Sequence[str]:
        """None for a client that asked to go on past the end of the turn: its stop ids lack the model's."""
        texts = self._texts
        return texts.end_markers if texts.end_ids <= request.sampling.stop_token_ids else ()

    def _alive(self) -> list[RuntimeRun]:
        """Every request that has not ended, oldest first; the caller holds the lock."""
        current = self._current
        return [*([current] if current is not None and current.finish is None else []), *self._queue]

    def _run_all(self) -> None:
        """The engine thread; a fault of our own fails everything rather than hang it."""
        try:
            while (run := self._next()) is not None:
                self._generate(run)
        except Exception:
            _log.exception("the engine's loop broke")
            with self._wake:
                self._deliver_last(None)
                self._current = None
                self._give_up("the engine broke; see the server's log and restart it")
        finally:
            with self._wake:
                self._over = True
                self._wake.notify_all()

    def _next(self) -> RuntimeRun | None:
        """Wait for a request and make it the current one; None when the engine is to end."""
        with self._wake:
            while True:
                if self._queue and not self._aborting:
                    run = self._current = self._queue.popleft()
                    run.started_s = self._clock()
                    self._statistics.count_started(run, run.started_s)
                    self._wake.notify_all()
                    return run
                if self._stop_at_s is not None and not self._queue:
                    return None
                self._wake.wait()

    def _generate(self, run: RuntimeRun) -> None:
        ids = run.request.prompt_ids
        text = joined_text(ids)
        started_s = self._clock()
        usage, error = RuntimeUsage(), None
        try:
            usage = self._runtime.generate(
                ids if text is None else text, run.request.sampling, lambda piece: self._take(run, piece)
            )
        except NpuserveError as caught:
            error = caught
        except Exception:
            _log.exception("a run broke")
            error = DeviceError("the run broke on a fault of the server; see its log")
        with self._wake:
            now_s = self._clock()
            self._statistics.count_run(now_s - started_s, now_s)
            if run.finish is None:
                self._complete(run, usage, error)
            self._deliver_last(usage.num_prompt_tokens)
            self._current = None
            self._wake.notify_all()

    def _complete(self, run: RuntimeRun, usage: RuntimeUsage, error: NpuserveError | None) -> None:
        """The runtime came to an end by itself."""
        if error is None:
            self._num_failures_in_row = 0
            num_prompt = usage.num_prompt_tokens or len(run.request.prompt_ids)
            is_full = num_prompt + run.num_generated >= self._can.context_length
            self._end(run, FinishReason.LENGTH if is_full else FinishReason.STOP)
            return
        _log.error("a run failed: %s", error)
        # How long a text is only the runtime knows, and it does not say why it refuses one.
        may_be_long = 2 * len(run.request.prompt_ids) > self._can.context_length
        hint = f"; the prompt may not fit the context of {self._can.context_length} tokens" if may_be_long else ""
        self._statistics.counters.num_failed_steps += 1
        self._num_failures_in_row += 1
        self._end(run, FinishReason.FAILED, error=f"the NPU failed while it worked on this request: {error}{hint}")
        if isinstance(error, DeviceUnavailableError) or self._num_failures_in_row >= _MAX_FAILED_RUNS:
            self._give_up(f"the NPU was given up: {error}; restart the server")

    def _take(self, run: RuntimeRun, piece: RuntimePiece) -> None:
        """One piece, on the vendor's thread."""
        now_s = self._clock()
        with self._wake:
            if run.finish is not None:
                return
            self._statistics.count_token(now_s)
            self._num_failures_in_row = 0
            event = run.push(piece, now_s)
            if event is not None:
                self._tell(run, event)

    def _watch(self) -> None:
        """The second thread: ends what is late, aborts the run whose request has ended."""
        while True:
            with self._wake:
                if self._over:
                    return
                now_s = self._clock()
                self._end_late(now_s)
                run = self._current
                if run is None or run.finish is None:
                    self._wake.wait(self._next_deadline_s(now_s))
                    continue
                self._aborting = True
                over_for_s = now_s - (run.finished_s or now_s)
            try:
                self._runtime.abort()
            finally:
                with self._wake:
                    self._aborting = False
                    if over_for_s > _PATIENCE_S:
                        self._deliver_last(None)
                    self._wake.notify_all()
                    if self._current is run:
                        self._wake.wait(_ABORT_AGAIN_S)

    def _end_late(self, now_s: float) -> None:
        for run in self._alive():
            deadline_s = run.request.deadline_s
            if self._stop_at_s is not None and now_s >= self._stop_at_s:
                self._end(run, FinishReason.FAILED, error="the server stopped before the reply was complete")
            elif deadline_s is not None and now_s >= deadline_s:
                self._end(run, FinishReason.CANCELLED, error="the request took longer than the server allows")

    def _next_deadline_s(self, now_s: float) -> float | None:
        """Seconds until something is late, None when nothing will be."""
        times = [run.request.deadline_s for run in self._alive() if run.request.deadline_s is not None]
        times += [self._stop_at_s] if self._stop_at_s is not None and now_s < self._stop_at_s else []
        return max(min(times) - now_s, 0.0) if times else None

    def _end(self, run: RuntimeRun, finish: FinishReason, *, error: str | None = None) -> None:
        """End `run` wherever it is; the caller holds the lock."""
        if run is not self._current:
            self._queue.remove(run)
        self._tell(run, run.end(finish, self._clock(), error=error))

    def _tell(self, run: RuntimeRun, event: Event) -> None:
        """Deliver, but keep the last event of a text prompt until the run has returned and its tokens are known."""
        if event.finish is not None:
            self._statistics.count_end(event)
            self._wake.notify_all()
            if run is self._current and joined_text(run.request.prompt_ids) is not None:
                self._last_event = event
                return
        self._deliver([event])

    def _deliver_last(self, num_prompt_tokens: int | None) -> None:
        event, self._last_event = self._last_event, None
        if event is not None:
            self._deliver([replace(event, num_prompt_tokens=num_prompt_tokens)])

    def _give_up(self, failure: str) -> None:
        """Take no more work and end what is alive; the caller holds the lock."""
        _log.critical("%s", failure)
        self._failure = failure
        for run in self._alive():
            self._end(run, FinishReason.FAILED, error=failure)
        self._on_failure(failure)

    def _deliver(self, events: list[Event]) -> None:
        try:
            self._deliver_events(events)
        except Exception:
            _log.exception("%d events could not be delivered", len(events))
