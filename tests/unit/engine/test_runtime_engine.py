"""The engine in front of a runtime that keeps its own loop."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.core import Event, FinishReason, Request, SamplingParams
from npuserve.devices.runtime import RuntimePiece, RuntimeUsage
from npuserve.engine.runtime_engine import RuntimeEngine, RuntimeTexts
from npuserve.engine.runtime_run import RuntimeRun
from npuserve.errors import ContextLengthError, DeviceUnavailableError, OverloadedError, RequestError
from npuserve.text.text_ids import text_id, text_of
from patience import WAIT_S, wait_until
from scripted_runtime import ScriptedRuntime

TOKENS = {1: b"<end>", 5: b"all", 6: b" well", 7: b"<"}
PROMPT = (text_id(b"how "), text_id(b"is it?"))


class Bytes:
    def __getitem__(self, token_id: int) -> bytes:
        text = text_of(token_id)
        return TOKENS.get(token_id, b"") if text is None else text


class Desk:
    """An engine and the events that it delivered, by request."""

    def __init__(self, runtime: ScriptedRuntime, *, max_queue: int = 8, start: bool = True) -> None:
        self.runtime = runtime
        self.events: queue.Queue[Event] = queue.Queue()
        self.failures: list[str] = []
        texts = RuntimeTexts(("<end>", "</stop>"), frozenset({1}), Bytes())
        self.engine = RuntimeEngine(
            runtime,
            texts,
            self._deliver,
            max_queue=max_queue,
            on_failure=self.failures.append,
        )
        if start:
            self.engine.start()

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self.events.put(event)

    def submit(self, name: str = "a", **changes: object) -> None:
        sampling = SamplingParams(max_tokens=50, stop_token_ids=frozenset({1}))
        request = Request(name, PROMPT, sampling, time.monotonic())
        for key, value in changes.items():
            request = (
                replace(request, **{key: value})  # type: ignore[arg-type]
                if hasattr(request, key)
                else replace(request, sampling=replace(request.sampling, **{key: value}))  # type: ignore[arg-type]
            )
        self.engine.submit(request)

    def next(self) -> Event:
        return self.events.get(timeout=WAIT_S)

    def reply(self, name: str = "a") -> tuple[bytes, Event, list[int]]:
        """Text, last event and ids of the next reply, which is that of `name`."""
        ids: list[int] = []
        while True:
            event = self.next()
            assert event.request_id == name
            ids += event.token_ids
            if event.finish is not None:
                return b"".join(Bytes()[token] for token in ids), event, ids


@pytest.fixture
def desk() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(*args: object, **options: object) -> Desk:
        desks.append(Desk(*args, **options))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for one in desks:
        one.runtime.release()
        assert one.engine.stop(), "the engine's threads did not end"


def test_a_reply_carries_the_runtimes_text_and_the_tokens_own_ids(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime([(b"all", 5), (b" we", 6), (b"ll", 6)]))
    made.submit()
    text, last, ids = made.reply()
    assert text == b"all well"
    assert last.finish is FinishReason.STOP
    # The second token's text was told in two parts: the ids stand for what was said, one for each callback.
    assert ids == [5, text_id(b" we", 6), text_id(b"ll", 6)]


def test_the_prompt_goes_down_as_text_or_as_token_ids(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime())
    made.submit("a")
    made.reply("a")
    made.submit("b", prompt_ids=(3, 4, 5))
    made.reply("b")
    assert made.runtime.prompts == [b"how is it?", (3, 4, 5)]


def test_a_stop_token_ends_the_reply_and_aborts_the_run(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime([(b"all", 5), (b"", 1)], endless=True))
    made.submit()
    made.runtime.step(2)
    text, last, ids = made.reply()
    assert (text, last.finish, last.stop_token_id, ids) == (b"all", FinishReason.STOP, 1, [5])
    made.submit("b")
    made.runtime.step(2)
    assert made.reply("b")[0] == b"all"


def test_a_marker_in_the_text_ends_the_reply_even_in_parts(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime([(b"all", 5), (b" is <", 90), (b"en", 91), (b"d>more", 92), (b"lost", 93)]))
    made.submit()
    text, last, ids = made.reply()
    assert text == b"all is "
    assert last.finish is FinishReason.STOP
    assert last.stop_token_id == 92
    assert len(ids) == 3  # with the token that ended it, one for each callback


def test_what_only_looked_like_a_marker_is_told_and_counted_once_a_token(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime([(b"<", 7), (b"en", 91), (b"ough", 92), (b" <en", 93)]))
    made.submit()
    text, _last, ids = made.reply()
    assert text == b"<enough <en"
    assert len(ids) == 4


def test_ignoring_the_end_ignores_markers(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime([(b"all", 5), (b"<end>", 1), (b" well", 6)]))
    made.submit(stop_token_ids=frozenset())
    assert made.reply()[0] == b"all<end> well"


def test_max_tokens_ends_with_length(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit(max_tokens=3)
    made.runtime.step(3)
    text, last, ids = made.reply()
    assert (text, last.finish, len(ids)) == (b"all wellall", FinishReason.LENGTH, 3)


def test_a_full_context_ends_with_length(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(usage=RuntimeUsage(98)))
    made.submit()
    assert made.reply()[1].finish is FinishReason.LENGTH


def test_the_runtimes_count_of_a_text_prompt_comes_with_the_last_event(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True, usage=RuntimeUsage(31)))
    made.submit(max_tokens=1)
    made.runtime.step()
    assert made.reply()[1].num_prompt_tokens == 31


def test_the_last_event_does_not_wait_for_ever_for_that_count(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True, deaf=True))
    made.submit(max_tokens=1)
    made.runtime.step()
    assert made.reply()[1].num_prompt_tokens is None
    wait_until(lambda: made.runtime.num_aborts > 1)


def test_requests_run_one_at_a_time_in_order(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime())
    for name in "abcdef":
        made.submit(name)
    assert [made.reply(name)[0] for name in "abcdef"] == [b"all well"] * 6


def test_cancel_while_running_frees_the_runtime_for_the_next(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a", prompt_ids=(3,))
    made.submit("b", prompt_ids=(4,))
    made.runtime.step()
    assert made.next().token_ids == (5,)
    made.engine.cancel("a")
    assert made.next().finish is FinishReason.CANCELLED
    assert made.runtime.started.acquire(timeout=WAIT_S)
    assert made.runtime.started.acquire(timeout=WAIT_S)
    made.runtime.step()
    assert made.next().request_id == "b"


def test_cancel_while_queued_never_reaches_the_runtime(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a", prompt_ids=(3,))
    made.submit("b", prompt_ids=(4,))
    made.submit("c", prompt_ids=(5,))
    assert made.runtime.started.acquire(timeout=WAIT_S)
    made.engine.cancel("b")
    assert (event := made.next()).request_id == "b"
    assert event.finish is FinishReason.CANCELLED
    made.engine.cancel("a")
    assert made.next().request_id == "a"
    assert made.runtime.started.acquire(timeout=WAIT_S)
    assert made.runtime.prompts == [(3,), (5,)]


def test_no_run_starts_while_an_aborted_one_is_still_busy(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True, deaf=True))
    made.submit("a", prompt_ids=(3,))
    made.submit("b", prompt_ids=(4,))
    assert made.runtime.started.acquire(timeout=WAIT_S)
    made.engine.cancel("a")
    assert made.next().request_id == "a"
    num_before = made.runtime.num_aborts
    wait_until(lambda: made.runtime.num_aborts > num_before + 2)
    assert not made.runtime.started.acquire(blocking=False)
    made.runtime.release()
    assert made.runtime.started.acquire(timeout=WAIT_S)


def test_a_deadline_ends_running_and_queued_requests(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a", prompt_ids=(3,), deadline_s=time.monotonic() + 0.2)
    made.submit("b", prompt_ids=(3,), deadline_s=time.monotonic() + 0.1)
    events = {event.request_id: event for event in (made.next(), made.next())}
    assert {name: event.finish for name, event in events.items()} == dict.fromkeys("ab", FinishReason.CANCELLED)
    assert "longer than" in (events["a"].error or "")


def test_a_full_queue_refuses(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True), max_queue=1)
    made.submit("a")
    made.submit("b")
    with pytest.raises(OverloadedError, match="takes 2"):
        made.submit("c")


def test_an_id_in_use_is_refused(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a")
    with pytest.raises(RequestError, match="in use"):
        made.submit("a")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"logit_bias": ((1, 2.0),)}, "logit_bias"),
        ({"min_p": 0.1}, "min_p"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"num_logprobs": 0}, "logprobs"),
        ({"constraint": object()}, "response_format"),
    ],
)
def test_what_the_runtime_cannot_honour_is_refused(
    desk: Callable[..., Desk], changes: dict[str, object], param: str
) -> None:
    with pytest.raises(RequestError, match="sampling = host") as caught:
        desk(ScriptedRuntime()).submit("a", **changes)
    assert caught.value.param == param


def test_token_ids_that_leave_no_room_are_refused_text_is_left_to_the_runtime(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(context_length=3))
    with pytest.raises(ContextLengthError):
        made.submit(prompt_ids=(1, 2, 3))
    made.submit(prompt_ids=(text_id(b"a"),) * 5)
    assert made.reply()[1].finish is FinishReason.LENGTH


def test_a_failed_run_fails_its_request_only(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(failures=[0]))
    made.submit("a")
    made.submit("b")
    _, last, _ = made.reply("a")
    assert last.finish is FinishReason.FAILED
    assert "run 0 was told to fail" in (last.error or "")
    assert made.reply("b")[0] == b"all well"
    assert made.engine.healthy


def test_three_failures_in_a_row_give_the_runtime_up(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(failures=range(3)))
    for name in "abc":
        made.submit(name)
    for name in "abc":
        assert made.reply(name)[1].finish is FinishReason.FAILED
    made.engine.stop()
    assert made.engine.failed
    assert len(made.failures) == 1
    with pytest.raises(DeviceUnavailableError, match="restart the server"):
        made.submit("d")


def test_stop_lets_a_reply_end_within_its_grace(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit(max_tokens=2)
    assert made.runtime.started.acquire(timeout=WAIT_S)
    stopping = threading.Thread(target=made.engine.stop, args=(30.0,))
    stopping.start()
    made.runtime.step(2)
    assert made.reply()[1].finish is FinishReason.LENGTH
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_stop_fails_what_is_alive_after_the_grace(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a", prompt_ids=(3,))
    made.submit("b", prompt_ids=(3,))
    assert made.runtime.started.acquire(timeout=WAIT_S)
    assert made.engine.stop(0.05)
    assert {made.next().finish, made.next().finish} == {FinishReason.FAILED}
    with pytest.raises(OverloadedError, match="stopping"):
        made.submit("c")


def test_an_engine_that_never_started_still_ends_what_it_took(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(), start=False)
    made.submit()
    assert made.engine.stop()
    assert made.next().finish is FinishReason.FAILED


def test_statistics(desk: Callable[..., Desk]) -> None:
    made = desk(ScriptedRuntime(endless=True))
    made.submit("a", prompt_ids=(3, 4))
    made.submit("b", prompt_ids=(3, 4))
    made.runtime.step(2)
    made.next()
    made.next()
    stats = made.engine.stats()
    assert (stats.num_running, stats.num_queued, stats.num_slots) == (1, 1, 1)
    assert (stats.num_requests, stats.num_tokens_in, stats.num_tokens_out) == (2, 2, 2)
    assert stats.slots[0].num_tokens == 4
    assert not made.engine.forget_contexts()
    assert made.engine.cancel_all() == 2
    assert made.engine.forget_contexts()
    assert made.engine.stats().num_requests_cancelled == 2


@given(
    st.lists(st.sampled_from(["<", "<e", "<end", "end>", ">", "</st", "op>", "ü", "x "]), max_size=30),
    st.lists(st.integers(1, 4), min_size=1),
    st.integers(1, 60),
)
def test_text_up_to_the_first_marker_is_told_however_it_is_cut(parts: list[str], cuts: list[int], limit: int) -> None:
    data = "".join(parts).encode()
    pieces: list[bytes] = []
    while data:
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(data[:size])
        data = data[size:]
    request = Request("a", PROMPT, SamplingParams(max_tokens=limit))
    run = RuntimeRun(request, ("<end>", "</stop>"), Bytes())
    events: list[Event] = []
    for piece in pieces:
        if run.finish is None and (event := run.push(RuntimePiece(piece, -1), 0.0)) is not None:
            events.append(event)
    if run.finish is None:
        events.append(run.end(FinishReason.STOP, 0.0))
    told = b"".join(Bytes()[token] for event in events for token in event.token_ids)
    taken = b"".join(pieces[:limit])
    ends = [at for marker in (b"<end>", b"</stop>") if (at := taken.find(marker)) >= 0]
    assert told == (taken[: min(ends)] if ends else taken)
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    num_told = sum(len(event.token_ids) for event in events) + (events[-1].stop_token_id is not None)
    assert num_told == run.num_generated
