import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from npuserve.core import Event, FinishReason, Request, Row, SamplingParams
from npuserve.devices.base import StepResult, nothing
from npuserve.devices.null import NullDevice
from npuserve.engine.engine import Engine
from npuserve.engine.scheduler import Batch, Scheduler
from npuserve.engine.settings import EngineSettings
from npuserve.errors import ContextLengthError, DeviceError, DeviceUnavailableError, OverloadedError, RequestError
from patience import WAIT_S


class Mailbox:
    """Collects events and lets a test wait for final ones."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._events: list[Event] = []
        self.num_calls = 0

    def deliver(self, events: list[Event]) -> None:
        with self._arrived:
            self._events += events
            self.num_calls += 1
            self._arrived.notify_all()

    def of(self, request_id: str) -> list[Event]:
        with self._arrived:
            return [event for event in self._events if event.request_id == request_id]

    def all(self) -> list[Event]:
        with self._arrived:
            return list(self._events)

    def final(self, request_id: str) -> Event:
        """Wait for the final event of a request."""

        def found() -> Event | None:
            return next((e for e in self._events if e.request_id == request_id and e.finish is not None), None)

        with self._arrived:
            event = self._arrived.wait_for(found, timeout=WAIT_S)
        assert event is not None, f"{request_id} did not end"
        return event

    def tokens(self, request_id: str) -> list[int]:
        self.final(request_id)
        return [token for event in self.of(request_id) for token in event.token_ids]


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    engine.start()
    try:
        yield engine
    finally:
        assert engine.stop()


def greedy(request_id: str, *prompt: int, max_tokens: int = 8) -> Request:
    return Request(request_id, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens))


class Gate:
    """A device script that halts each step until the test lets it pass, or opens for good."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._is_open = False

    def script(self, history: tuple[int, ...]) -> int:
        self._entered.release()
        if not self._is_open:
            assert self._passes.acquire(timeout=WAIT_S)
        return len(history)

    def wait_until_entered(self) -> None:
        assert self._entered.acquire(timeout=WAIT_S)

    def open(self) -> None:
        self._is_open = True
        self._passes.release(1000)


def sampled(request_id: str, *prompt: int, seed: int) -> Request:
    return Request(request_id, prompt, SamplingParams(temperature=1.0, seed=seed, max_tokens=30))


def test_two_requests_run_to_the_end() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(vocab_size=100), EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2, 3, max_tokens=5))
        engine.submit(greedy("b", 4, max_tokens=7))
        assert len(mailbox.tokens("a")) == 5
        assert len(mailbox.tokens("b")) == 7
        assert mailbox.final("a").finish is FinishReason.LENGTH


@pytest.mark.parametrize("mixed", [False, True])
def test_a_seed_gives_the_same_tokens_alone_and_in_company(mixed: bool) -> None:
    requests = [sampled(f"r{seed}", *range(3 * seed + 1), seed=seed) for seed in range(12)]
    alone = []
    for request in requests:
        mailbox = Mailbox()
        with running(Engine(NullDevice(vocab_size=100), EngineSettings(num_slots=1), mailbox.deliver)) as engine:
            engine.submit(request)
            alone.append(mailbox.tokens(request.id))
    mailbox = Mailbox()
    device = NullDevice(vocab_size=100, max_rows=10)
    with running(Engine(device, EngineSettings(num_slots=5, chunk_size=7, mixed=mixed), mailbox.deliver)) as engine:
        for request in requests:
            engine.submit(request)
        assert [mailbox.tokens(request.id) for request in requests] == alone


def test_the_news_of_a_step_come_in_one_call() -> None:
    mailbox = Mailbox()
    engine = Engine(NullDevice(vocab_size=100), EngineSettings(), mailbox.deliver)
    for name in "abcd":
        engine.submit(greedy(name, 1, max_tokens=6))
    with running(engine):
        for name in "abcd":
            assert len(mailbox.tokens(name)) == 6
    assert mailbox.num_calls == 6


def test_stats_count_requests_tokens_and_steps() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(vocab_size=100), EngineSettings(num_slots=3), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2, 3, max_tokens=4))
        reply = mailbox.tokens("a")
        engine.submit(greedy("b", 1, 2, 3, *reply, 5, max_tokens=2))
        mailbox.final("b")
        stats = engine.stats()
    assert (stats.num_requests, stats.num_tokens_in, stats.num_tokens_out) == (2, 3 + 8, 4 + 2)
    assert stats.num_tokens_cached == mailbox.final("b").num_cached_tokens == 6
    assert (stats.num_steps, stats.num_slots, stats.num_running, stats.num_queued) == (6, 3, 0, 0)
    assert stats.last_step_s is not None
    assert min(stats.scheduling_s, stats.device_s, stats.sampling_s) > 0.0


def test_stats_show_who_holds_a_slot_and_who_waits() -> None:
    gate, mailbox = Gate(), Mailbox()
    with running(Engine(NullDevice(script=gate.script), EngineSettings(num_slots=1), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2))
        engine.submit(greedy("b", 3))
        gate.wait_until_entered()
        stats = engine.stats()
        gate.open()
        assert (stats.num_running, stats.num_queued) == (1, 1)
        assert [(slot.slot, slot.request_id) for slot in stats.slots] == [(0, "a")]
        mailbox.final("b")


def test_cancel_ends_queued_and_running_requests_after_the_step_at_most() -> None:
    gate, mailbox = Gate(), Mailbox()
    device = NullDevice(script=gate.script)
    with running(Engine(device, EngineSettings(num_slots=1), mailbox.deliver)) as engine:
        for name in "abc":
            engine.submit(greedy(name, 1, 2, max_tokens=3))
        gate.wait_until_entered()
        for name in ("a", "b", "b", "unknown"):
            engine.cancel(name)
        gate.open()
        assert mailbox.final("a").finish is FinishReason.CANCELLED
        assert len(mailbox.tokens("a")) == 1
        assert mailbox.of("b") == [mailbox.final("b")]
        assert mailbox.final("b").finish is FinishReason.CANCELLED
        assert mailbox.tokens("c") == [2, 3, 4]
    assert device.num_steps == 1 + 3


def test_a_full_queue_refuses_and_takes_again_when_there_is_room() -> None:
    gate, mailbox = Gate(), Mailbox()
    settings = EngineSettings(num_slots=1, max_queue=1)
    with running(Engine(NullDevice(script=gate.script), settings, mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1))
        engine.submit(greedy("b", 1))
        with pytest.raises(OverloadedError):
            engine.submit(greedy("c", 1))
        gate.open()
        mailbox.final("a")
        engine.submit(greedy("c", 1))
        mailbox.final("c")


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (greedy("a"), RequestError, "prompt is empty"),
        (greedy("a", *range(16)), ContextLengthError, "16 tokens, but the context holds 16"),
        (greedy("a", 1, 100), RequestError, "token 100 is outside the vocabulary of 100"),
        (greedy("a", -1, 3), RequestError, "token -1"),
        (greedy("a", 1, max_tokens=0), RequestError, "max_tokens is 0"),
    ],
)
def test_what_the_device_cannot_be_fed_is_refused(request_: Request, error: type[Exception], message: str) -> None:
    engine = Engine(NullDevice(vocab_size=100, context_length=16), EngineSettings(), Mailbox().deliver)
    with pytest.raises(error, match=message):
        engine.submit(request_)


def test_a_failed_step_ends_its_requests_and_the_loop_goes_on() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(fail_at_step={1}), EngineSettings(num_slots=2), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2, max_tokens=3))
        final = mailbox.final("a")
        assert (final.finish, len(mailbox.tokens("a"))) == (FinishReason.FAILED, 1)
        assert final.error is not None
        assert "told to fail at step 1" in final.error
        assert engine.healthy
        engine.submit(greedy("b", 1, 2, max_tokens=3))
        assert mailbox.final("b").finish is FinishReason.LENGTH
        # What the failed step left behind is not trusted.
        assert mailbox.final("b").num_cached_tokens == 0
        assert engine.stats().num_failed_steps == 1


def test_failures_in_a_row_give_the_device_up() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(fail_at_step=range(99)), EngineSettings(num_slots=1), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1))
        mailbox.final("a")
        engine.submit(greedy("b", 1))
        mailbox.final("b")
        engine.submit(greedy("c", 1))
        mailbox.final("c")
        assert engine.failed
        assert not engine.healthy
        with pytest.raises(DeviceUnavailableError, match="given up"):
            engine.submit(greedy("d", 1))


def test_failures_with_good_steps_between_them_do_not_add_up() -> None:
    mailbox = Mailbox()
    device = NullDevice(fail_at_step=range(0, 20, 2))
    with running(Engine(device, EngineSettings(num_slots=1), mailbox.deliver)) as engine:
        for number in range(8):
            engine.submit(greedy(f"r{number}", 1, max_tokens=1))
            mailbox.final(f"r{number}")
        assert engine.healthy


def test_a_device_that_is_gone_fails_everything_at_once() -> None:
    mailbox = Mailbox()
    device = NullDevice(fail_at_step={0}, failure=DeviceUnavailableError)
    engine = Engine(device, EngineSettings(num_slots=1), mailbox.deliver)
    for name in "abc":
        engine.submit(greedy(name, 1))
    with running(engine):
        assert [mailbox.final(name).finish for name in "abc"] == [FinishReason.FAILED] * 3
        assert engine.failed


class Noted(NullDevice):
    """Notes when its steps begin and when what is done meanwhile is over."""

    def __init__(self) -> None:
        super().__init__(vocab_size=100)
        self.log: list[str] = []

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        self.log.append("step")
        result = super().step(rows, meanwhile)
        self.log.append("done")
        return result


def test_the_news_of_a_step_come_while_the_next_one_runs_and_the_last_when_there_is_none() -> None:
    device, mailbox = Noted(), Mailbox()

    def deliver(events: list[Event]) -> None:
        device.log.append("news")
        mailbox.deliver(events)

    with running(Engine(device, EngineSettings(), deliver)) as engine:
        engine.submit(greedy("a", 1, max_tokens=3))
        mailbox.final("a")
    assert device.log == ["step", "done", "step", "news", "done", "step", "news", "done", "news"]


def test_the_news_do_not_wait_for_a_long_step_to_begin() -> None:
    device, mailbox = Noted(), Mailbox()

    def deliver(events: list[Event]) -> None:
        device.log.append("news")
        mailbox.deliver(events)

    engine = Engine(device, EngineSettings(), deliver)
    engine.submit(greedy("a", 1, max_tokens=2))
    engine.submit(greedy("b", *range(100), max_tokens=1))
    with running(engine):
        mailbox.final("b")
    # A chunk of b's prompt, a row of a, and a's news before the next chunk.
    assert device.log[:6] == ["step", "done", "step", "done", "news", "step"]


def test_news_that_a_failed_step_held_up_come_all_the_same() -> None:
    mailbox, device = Mailbox(), NullDevice(vocab_size=100, num_slots=2)
    step, count = device.step, 0

    def fails_before_it_runs(rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        nonlocal count
        count += 1
        if count == 2:
            raise DeviceError("it is gone")
        return step(rows, meanwhile)

    device.step = fails_before_it_runs  # type: ignore[method-assign]
    with running(Engine(device, EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, max_tokens=3))
        assert mailbox.final("a").finish is FinishReason.FAILED
    assert [len(event.token_ids) for event in mailbox.of("a")] == [1, 0]


class WrongLogits(NullDevice):
    """Gives one slot's row a NaN."""

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        result = super().step(rows, meanwhile)
        wanted = [row for row in rows if row.want_logits]
        logits = result.logits.copy()
        logits[[row.slot == 0 for row in wanted], 5] = np.nan
        return StepResult(logits)


def test_a_row_that_is_not_finite_fails_its_own_request_only() -> None:
    mailbox = Mailbox()
    engine = Engine(WrongLogits(), EngineSettings(num_slots=2), mailbox.deliver)
    engine.submit(greedy("a", 1))
    engine.submit(greedy("b", 1))
    with running(engine):
        assert mailbox.final("a").finish is FinishReason.FAILED
        assert "not finite" in str(mailbox.final("a").error)
        assert mailbox.final("b").finish is FinishReason.LENGTH


class BrokenStep(NullDevice):
    """Breaks on a fault of ours in its first step."""

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        result = super().step(rows, meanwhile)
        if self.num_steps == 1:
            raise ZeroDivisionError
        return result


def test_a_fault_of_our_own_in_a_step_is_logged_and_fails_the_steps_requests(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox()
    with running(Engine(BrokenStep(), EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1))
        assert "fault of the server" in str(mailbox.final("a").error)
        engine.submit(greedy("b", 1))
        assert mailbox.final("b").finish is FinishReason.LENGTH
    assert "ZeroDivisionError" in caplog.text


def test_a_broken_loop_fails_everything_rather_than_hang(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(scheduler: Scheduler) -> Batch:
        raise ZeroDivisionError

    monkeypatch.setattr(Scheduler, "schedule", broken)
    mailbox = Mailbox()
    with running(Engine(NullDevice(), EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1))
        assert mailbox.final("a").finish is FinishReason.FAILED
        assert engine.failed
    assert "ZeroDivisionError" in caplog.text


def test_news_that_cannot_be_delivered_do_not_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox()

    def deliver(events: list[Event]) -> None:
        if events[0].request_id == "a":
            raise RuntimeError("the receiver is gone")
        mailbox.deliver(events)

    with running(Engine(NullDevice(), EngineSettings(num_slots=1), deliver)) as engine:
        engine.submit(greedy("a", 1))
        engine.submit(greedy("b", 1))
        mailbox.final("b")
    assert "the receiver is gone" in caplog.text


def test_stop_lets_running_requests_end_within_the_grace() -> None:
    gate, mailbox = Gate(), Mailbox()
    engine = Engine(NullDevice(script=gate.script), EngineSettings(num_slots=1), mailbox.deliver)
    with running(engine):
        engine.submit(greedy("a", 1))
        engine.submit(greedy("b", 1))
        gate.wait_until_entered()
        stopping = threading.Thread(target=engine.stop, args=(60.0,))
        stopping.start()
        while engine.healthy:
            stopping.join(0.001)
        with pytest.raises(OverloadedError, match="stopping"):
            engine.submit(greedy("c", 1))
        gate.open()
        stopping.join(WAIT_S)
        assert [mailbox.final(name).finish for name in "ab"] == [FinishReason.LENGTH] * 2


def test_stop_without_grace_fails_what_is_alive() -> None:
    gate, mailbox = Gate(), Mailbox()
    engine = Engine(NullDevice(script=gate.script), EngineSettings(num_slots=1), mailbox.deliver)
    engine.start()
    engine.submit(greedy("a", 1))
    engine.submit(greedy("b", 1))
    gate.wait_until_entered()
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while engine.healthy:
        stopping.join(0.001)
    gate.open()
    stopping.join(WAIT_S)
    assert [mailbox.final(name).finish for name in "ab"] == [FinishReason.FAILED] * 2
    assert engine.stop()


def test_stop_ends_what_was_accepted_before_a_start_that_never_came() -> None:
    mailbox = Mailbox()
    engine = Engine(NullDevice(), EngineSettings(), mailbox.deliver)
    engine.submit(greedy("a", 1))
    assert engine.stop()
    assert mailbox.final("a").finish is FinishReason.FAILED


def test_contexts_are_forgotten_on_demand_when_nothing_is_alive() -> None:
    gate, mailbox = Gate(), Mailbox()
    with running(Engine(NullDevice(script=gate.script), EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2, 3))
        gate.wait_until_entered()
        assert not engine.forget_contexts()
        gate.open()
        mailbox.final("a")
        assert engine.forget_contexts()
        engine.submit(greedy("b", 1, 2, 3))
        assert mailbox.final("b").num_cached_tokens == 0


def test_many_threads_may_submit_and_cancel() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(vocab_size=100), EngineSettings(max_queue=1000), mailbox.deliver)) as engine:

        def client(number: int) -> None:
            for at in range(20):
                engine.submit(greedy(f"r{number}-{at}", 1, number, max_tokens=5))
                if at % 2:
                    engine.cancel(f"r{number}-{at}")

        threads = [threading.Thread(target=client, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(5):
            for at in range(20):
                final = mailbox.final(f"r{number}-{at}")
                assert final.finish is FinishReason.LENGTH or at % 2
                assert mailbox.of(f"r{number}-{at}")[-1] is final
    assert sum(event.finish is not None for event in mailbox.all()) == 100
