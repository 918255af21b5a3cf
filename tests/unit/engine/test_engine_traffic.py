"""What moves between slots, RAM and disk moves beside the streams, and its faults stay with those they concern."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from brake import Brake
from engine_runs import Replies, greedy, running, store_for
from npuserve.core import CacheSource, FinishReason, Request, Row, SamplingParams
from npuserve.devices.base import StepResult, nothing
from npuserve.devices.null import NullDevice
from npuserve.engine import engine as engine_module
from npuserve.engine.contexts import StoredContexts
from npuserve.engine.engine import Engine
from npuserve.engine.restorer import Restorer
from npuserve.engine.sequence import Sequence as RunningSequence
from npuserve.engine.settings import EngineSettings
from npuserve.errors import DeviceError, DeviceUnavailableError
from npuserve.kvstore.page import Page
from npuserve.kvstore.ram import RamStore
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore
from patience import WAIT_S, wait_until

PROMPT = [at * 11 % 500 for at in range(400)]
LENGTH = 640
DEVICE_S = 0.001  # what every step says that it took


class Watched(NullDevice):
    """Notes what it is asked to do, stands still before a step and fails saves and restores on demand."""

    def __init__(self, *, recurrent: bool = False, num_slots: int = 2) -> None:
        super().__init__(
            vocab_size=500, num_slots=1 if recurrent else num_slots, context_length=LENGTH, recurrent=recurrent
        )
        self.brake = Brake()
        self.log: list[tuple[str, list[int]]] = []
        self.save_error: Exception | None = None
        self.restore_error: Exception | None = None

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        self.brake.pass_by()
        self.log.append(("step", [row.slot for row in rows]))
        return replace(super().step(rows, meanwhile), device_s=DEVICE_S)

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        self.log.append(("save", [slot]))
        if self.save_error is not None:
            raise self.save_error
        return super().save(slot, page)

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        self.log.append(("restore", [slot] * len(data)))
        if self.restore_error is not None:
            raise self.restore_error
        super().restore(slot, page, data)


class GatedStore(RamStore):
    """A disk that gives no page before the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def get(self, key: bytes) -> Page | None:
        assert self.gate.wait(WAIT_S)
        return super().get(key)


@pytest.fixture(autouse=True)
def no_computing_is_faster_than_restoring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null device computes so fast that it would hardly ever be worth it."""
    monkeypatch.setattr(StoredContexts, "note_prefill", lambda self, num_tokens, seconds: None)


def gated(device: NullDevice) -> tuple[ContextStore, GatedStore]:
    """A store of a disk tier only, with the pages of PROMPT in it."""
    can, disk = device.capabilities, GatedStore()
    store = ContextStore(KvSettings(0, 1 << 30), "tiny", can.page_format, disk)
    replies, first = Replies(), NullDevice(vocab_size=500, context_length=LENGTH, num_slots=1)
    with running(first, replies, store=store) as engine:
        engine.submit(greedy("first", PROMPT))
        replies.final("first")
    assert store.drain(WAIT_S)
    return store, disk


def test_streams_go_on_while_a_context_is_read_from_disk() -> None:
    device, replies = Watched(), Replies()
    store, disk = gated(device)
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("slow", PROMPT))
        wait_until(lambda: [slot.state for slot in engine.stats().slots] == ["restoring"])
        engine.submit(greedy("quick", [1, 2, 3], 50))
        assert len(replies.tokens("quick")) == 50
        assert replies.of("slow") == []
        disk.gate.set()
        assert replies.final("slow").cache_source is CacheSource.DISK
        assert replies.final("slow").num_cached_tokens == 384
    store.close()


def test_who_leaves_while_its_context_is_read_is_gone_at_once() -> None:
    device, replies = Watched(num_slots=1), Replies()
    store, disk = gated(device)
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT))
        wait_until(lambda: engine.stats().num_running == 1)
        engine.cancel("a")
        assert replies.final("a").finish is FinishReason.CANCELLED
        engine.submit(Request("late", tuple(PROMPT), SamplingParams(), deadline_s=time.monotonic() + 0.05))
        assert replies.final("late").finish is FinishReason.CANCELLED
        assert "deadline passed" in str(replies.final("late").error)
        engine.submit(greedy("b", [5, 6]))
        assert replies.final("b").finish is FinishReason.LENGTH
        disk.gate.set()
    store.close()


def test_restoring_is_done_in_pieces_between_the_steps_of_others() -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("first", [*PROMPT, *PROMPT[:200]]))
        replies.final("first")
        wait_until(lambda: store.stats().ram.entries == 9)
        engine.forget_contexts(CacheSource.SLOT)
        device.brake.halt_after(10)
        engine.submit(greedy("stream", [1, 2, 3], 600))
        device.brake.wait_until_halted()
        device.log.clear()
        engine.submit(greedy("again", [*PROMPT, *PROMPT[:200]]))
        device.brake.release()
        replies.final("again")
        engine.cancel("stream")
    assert replies.final("again").num_cached_tokens == 576
    sizes = [len(slots) for what, slots in device.log if what == "restore"]
    assert sizes == [8, 1]
    between = "".join(what[0] for what, _ in device.log if what in ("step", "restore"))
    assert "rr" not in between


@pytest.mark.parametrize("mixed", [False, True])
def test_a_long_prompt_stalls_a_stream_by_one_chunk_at_most(mixed: bool) -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    with running(device, replies, EngineSettings(mixed=mixed), store) as engine:
        device.brake.halt_after(5)
        engine.submit(greedy("stream", [1, 2, 3], 500))
        device.brake.wait_until_halted()
        engine.submit(greedy("long", [*PROMPT, *PROMPT[:200]], 1))
        device.brake.release()
        replies.final("long")
        engine.cancel("stream")
    steps = [slots for what, slots in device.log if what == "step"]
    first = next(at for at, slots in enumerate(steps) if 1 in slots)
    last = max(at for at, slots in enumerate(steps) if 1 in slots)
    waits = [0 in slots for slots in steps[first : last + 1]]
    assert any(waits)
    assert all(here or after for here, after in pairwise(waits))


def test_in_turns_too_a_long_prompt_stalls_a_stream_by_one_chunk_at_most() -> None:
    device, replies, store = Watched(recurrent=True), Replies(), store_for(Watched(recurrent=True))
    with running(device, replies, EngineSettings(quantum=4), store) as engine:
        device.brake.halt_after(5)
        engine.submit(greedy("stream", [1, 2, 3], 500))
        device.brake.wait_until_halted()
        engine.submit(greedy("long", [*PROMPT, *PROMPT[:200]], 1))
        device.brake.release()
        assert replies.final("long").finish is FinishReason.LENGTH
        engine.cancel("stream")
    steps = [len(slots) for what, slots in device.log if what == "step"]
    chunks = [at for at, size in enumerate(steps[1:], 1) if size > 1]
    assert len(chunks) == 10
    # Between two chunks of the prompt the stream has its turn, be it cut short by the end of a page.
    assert all(after - before >= 2 for before, after in pairwise(chunks))


def test_saving_takes_two_pages_between_two_steps_at_most() -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT, 100))
        replies.final("a")
        wait_until(lambda: store.stats().ram.entries == 7)
    count = most = 0
    for what, _ in device.log[: max(at for at, (what, _) in enumerate(device.log) if what == "step")]:
        count = count + 1 if what == "save" else 0
        most = max(most, count)
    assert 1 <= most <= 2


def test_a_context_is_saved_before_its_slot_is_needed() -> None:
    device, replies, store = Watched(num_slots=1), Replies(), store_for(Watched())
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT, 100))
        engine.submit(greedy("b", [7], 5))
        replies.final("b")
    assert store.stats().ram.entries == 7


def test_a_failed_restore_fails_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT))
        replies.final("a")
        wait_until(lambda: store.stats().ram.entries == 6)
        engine.forget_contexts(CacheSource.SLOT)
        device.restore_error = DeviceError("the bus is upset")
        engine.submit(greedy("b", PROMPT))
        engine.submit(greedy("c", [1, 2]))
        assert replies.final("b").finish is FinishReason.FAILED
        assert "the bus is upset" in str(replies.final("b").error)
        assert replies.final("c").finish is FinishReason.LENGTH
        device.restore_error = None
        engine.submit(greedy("d", PROMPT))
        assert replies.final("d").num_cached_tokens == 384
    assert "request b" in caplog.text


def test_a_failed_save_costs_no_request_and_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    device.save_error = DeviceError("the bus is upset")
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT[:200]))
        assert replies.final("a").finish is FinishReason.LENGTH
    assert store.stats().ram.entries == 0
    assert len([what for what, _ in device.log if what == "save"]) == len(caplog.records) == 3


def test_whoever_wants_to_know_is_told_once_that_the_device_is_gone() -> None:
    told: list[str] = []
    replies = Replies()
    device = NullDevice(fail_at_step={0}, failure=DeviceUnavailableError)
    engine = Engine(device, EngineSettings(num_slots=1), replies.deliver, on_failure=told.append)
    for name in "abc":
        engine.submit(greedy(name, [1]))
    engine.start()
    assert [replies.final(name).finish for name in "abc"] == [FinishReason.FAILED] * 3
    assert engine.stop()
    assert len(told) == 1
    assert "given up" in told[0]


def test_a_device_that_is_gone_is_left_alone() -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    device.save_error = DeviceError("gone")
    with running(device, replies, EngineSettings(num_slots=2), store) as engine:
        engine.submit(greedy("a", PROMPT))
        replies.final("a")
        device._fail_at_step = range(10_000)
        device._failure = DeviceUnavailableError
        engine.submit(greedy("b", [1]))
        assert replies.final("b").finish is FinishReason.FAILED
        wait_until(lambda: not engine._is_due())
        calls = len(device.log)
    assert len(device.log) == calls


def test_wrong_books_are_told_loudly_and_all_contexts_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_CHECK_STORE_S", 0.0)
    device, replies, store = Watched(), Replies(), store_for(Watched())
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT))
        replies.final("a")
        wait_until(lambda: store.stats().ram.entries == 6)
        store._ram.index.size_bytes += 1
        engine.submit(greedy("b", [1, 2]))
        replies.final("b")
        wait_until(lambda: store.stats().ram.entries == 0)
        engine.submit(greedy("c", PROMPT))
        assert replies.final("c").num_cached_tokens == 0
        assert engine.healthy
    assert "do not add up" in caplog.text


def test_a_deadline_ends_queued_and_running_requests() -> None:
    device, replies, now_s = Watched(num_slots=1), Replies(), [1.0]
    with running(device, replies, EngineSettings(num_slots=1), clock=lambda: now_s[0]) as engine:
        device.brake.halt_after(3)
        sampling = SamplingParams(temperature=0.0, max_tokens=600)
        for name in ("running", "queued"):
            engine.submit(Request(name, (1, 2), sampling, deadline_s=2.0))
        device.brake.wait_until_halted()
        now_s[0] = 2.0
        device.brake.release()
        for name in ("running", "queued"):
            assert replies.final(name).finish is FinishReason.CANCELLED
            assert "deadline" in str(replies.final(name).error)
        assert [len(event.token_ids) for event in replies.of("running")] == [1, 1, 1, 1, 0]
        assert len(replies.of("queued")) == 1


def test_all_requests_are_cancelled_at_once() -> None:
    device, replies = Watched(), Replies()
    with running(device, replies) as engine:
        device.brake.halt_after(0)
        for name in "abcd":
            engine.submit(greedy(name, [1, 2], 600))
        device.brake.wait_until_halted()
        assert engine.cancel_all() == 4
        device.brake.release()
        assert [replies.final(name).finish for name in "abcd"] == [FinishReason.CANCELLED] * 4
        assert engine.cancel_all() == 0


def test_stats_tell_slots_rates_and_the_store() -> None:
    device, replies, store = Watched(), Replies(), store_for(Watched())
    ticks = count(1)  # a clock that goes on whenever it is looked at, which is several times a step
    with running(device, replies, store=store, clock=lambda: next(ticks) * DEVICE_S) as engine:
        engine.submit(greedy("a", PROMPT))
        replies.final("a")
        wait_until(lambda: store.stats().ram.entries == 6)
        stats = engine.stats()
    assert [(slot.slot, slot.num_tokens, slot.state) for slot in stats.warm_slots] == [(0, 407, "warm")]
    assert 0 < stats.warm_slots[0].age_s < stats.uptime_s
    assert (stats.slots, stats.num_running, stats.stalled_s) == ((), 0, 0.0)
    assert stats.store is not None
    assert (stats.store.ram.entries, stats.store.disk) == (6, None)
    assert min(stats.tokens_in_per_s, stats.tokens_out_per_s, stats.uptime_s) > 0
    assert 0 < stats.device_share <= 1
    assert 0 < stats.recent_device_share <= 1


def test_a_device_that_hangs_shows_as_stalled() -> None:
    replies, gate = Replies(), threading.Event()

    def script(history: tuple[int, ...]) -> int:
        gate.wait(WAIT_S)
        return 1

    with running(NullDevice(script=script), replies) as engine:
        engine.submit(greedy("a", [1, 2], 1))
        wait_until(lambda: engine.stats().stalled_s > 0.02)
        gate.set()
        replies.final("a")
        assert engine.stats().stalled_s == 0.0


def restorer_with_pages() -> tuple[Restorer, RunningSequence]:
    """All 6 pages of PROMPT are in RAM."""
    device, replies = Watched(num_slots=1), Replies()
    store = store_for(device)
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", PROMPT))
        replies.final("a")
    restorer = Restorer(device, store, lambda: None)
    sequence = RunningSequence(greedy("b", PROMPT))
    assert restorer.num_stored(sequence) == 384
    return restorer, sequence


@pytest.mark.parametrize(
    ("page_s", "token_s", "is_restored"), [(0.001, 0.001, True), (0.063, 0.001, True), (0.065, 0.001, False)]
)
def test_what_is_computed_faster_than_it_is_restored_is_computed(
    page_s: float, token_s: float, is_restored: bool
) -> None:
    restorer, sequence = restorer_with_pages()
    restorer.restore_pace.observe(1, page_s)
    restorer.prefill_pace.observe(1, token_s)
    sequence.admit(0, 0, 0.0)
    restorer.begin(sequence)
    assert sequence.is_restoring == is_restored


def test_a_pace_that_keeps_us_from_restoring_is_tried_again_some_time() -> None:
    restorer, sequence = restorer_with_pages()
    restorer.restore_pace.observe(1, 0.07)
    restorer.prefill_pace.observe(1, 0.001)
    for _ in range(10):
        restorer.num_stored(sequence)
        sequence.admit(0, 0, 0.0)
        restorer.begin(sequence)
    assert sequence.is_restoring


def test_what_a_slot_holds_is_not_restored() -> None:
    restorer, sequence = restorer_with_pages()
    sequence.admit(0, 399, 0.0)
    restorer.begin(sequence)
    assert not sequence.is_restoring
    assert restorer.num_open == 0
