from collections.abc import Callable, Iterable

import pytest

from npuserve.core import Event, FinishReason, Request, Row, SamplingParams
from npuserve.devices.base import Capabilities
from npuserve.engine.scheduler import Batch, Scheduler
from npuserve.engine.sequence import Sequence
from npuserve.engine.settings import EngineSettings
from npuserve.errors import ConfigError, OverloadedError, RequestError
from scheduling import next_batch

NEXT_TOKEN = 7


def scheduler_of(
    *, num_slots: int = 4, chunk_size: int = 4, mixed: bool = False, max_queue: int = 8, max_rows: int = 8
) -> Scheduler:
    settings = EngineSettings(num_slots, chunk_size, mixed, max_queue)
    return Scheduler(settings, Capabilities("test", 4, max_rows, context_length=64, vocab_size=100))


def request(
    request_id: str, prompt: Iterable[int], *, max_tokens: int = 50, stop: frozenset[int] = frozenset(), salt: str = ""
) -> Sequence:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=stop)
    return Sequence(Request(request_id, tuple(prompt), sampling, arrival_s=1.0, cache_salt=salt))


def run(scheduler: Scheduler, num_steps: int = 1, *, token: int = NEXT_TOKEN, now_s: float = 2.0) -> list[Event]:
    """Run steps in which every sequence that samples gets `token`; the events of all of them."""
    events: list[Event] = []
    for _ in range(num_steps):
        batch = next_batch(scheduler, now_s)
        events += scheduler.complete(batch, {sequence.id: token for sequence in batch.sampled}, now_s)
    return events


def shape(batch: Batch) -> list[tuple[str, int]]:
    return [(sequence.id, count) for sequence, count in batch.parts]


def shapes(scheduler: Scheduler, num_steps: int) -> list[list[tuple[str, int]]]:
    found = []
    for _ in range(num_steps):
        batch = next_batch(scheduler, 2.0)
        found.append(shape(batch))
        scheduler.complete(batch, {sequence.id: NEXT_TOKEN for sequence in batch.sampled}, 2.0)
    return found


def test_nothing_alive_gives_no_rows() -> None:
    assert next_batch(scheduler_of(), 0.0).rows == []


def test_a_prompt_is_fed_in_chunks_and_only_its_last_row_wants_logits() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [10, 11, 12, 13, 14, 15]))
    first = next_batch(scheduler, 0.0)
    assert first.rows == [Row(0, at, 10 + at, False) for at in range(4)]
    assert first.sampled == []
    assert scheduler.complete(first, {}, 0.0) == []
    assert next_batch(scheduler, 0.0).rows == [Row(0, 4, 14, False), Row(0, 5, 15, True)]


def test_a_generated_token_is_the_next_row() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [10, 11]))
    assert run(scheduler) == [Event("a", (NEXT_TOKEN,))]
    assert next_batch(scheduler, 0.0).rows == [Row(0, 2, NEXT_TOKEN, True)]


def test_long_prefill_does_not_stall_decode_by_more_than_one_chunk() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("stream", [1]))
    run(scheduler)
    scheduler.add(request("long", range(12)))
    assert shapes(scheduler, 7) == [
        [("long", 4)],
        [("stream", 1)],
        [("long", 4)],
        [("stream", 1)],
        [("long", 4)],
        [("stream", 1), ("long", 1)],
        [("stream", 1), ("long", 1)],
    ]


def test_mixed_prompt_rows_ride_in_the_spare_rows_of_a_decode_step() -> None:
    scheduler = scheduler_of(mixed=True, chunk_size=100)
    scheduler.add(request("one", [1]))
    scheduler.add(request("two", [2]))
    run(scheduler)
    scheduler.add(request("long", range(9)))
    assert shapes(scheduler, 3) == [
        [("one", 1), ("two", 1), ("long", 6)],
        [("one", 1), ("two", 1), ("long", 3)],
        [("one", 1), ("two", 1), ("long", 1)],
    ]


def test_mixed_prompt_rows_are_bounded_by_the_chunk_size() -> None:
    scheduler = scheduler_of(mixed=True, chunk_size=3)
    scheduler.add(request("stream", [1]))
    run(scheduler)
    scheduler.add(request("long", range(9)))
    assert shapes(scheduler, 1) == [[("stream", 1), ("long", 3)]]


def test_a_chunk_is_never_larger_than_the_devices_step() -> None:
    scheduler = scheduler_of(chunk_size=100, max_rows=5)
    scheduler.add(request("long", range(12)))
    assert shapes(scheduler, 3) == [[("long", 5)], [("long", 5)], [("long", 2)]]


def test_prompts_are_fed_in_order_of_arrival_one_at_a_time() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", range(8)))
    scheduler.add(request("b", range(50, 54)))
    assert shapes(scheduler, 4) == [[("a", 4)], [("a", 4)], [("b", 4)], [("a", 1), ("b", 1)]]


def test_a_device_with_fewer_rows_than_slots_runs_as_many_requests_as_it_has_rows() -> None:
    scheduler = scheduler_of(num_slots=4, max_rows=2)
    assert scheduler.num_slots == 2


def test_requests_beyond_the_slots_wait_in_order() -> None:
    scheduler = scheduler_of(num_slots=1)
    for name in "abc":
        scheduler.add(request(name, [1], max_tokens=1))
    assert [event.request_id for event in run(scheduler, 3)] == ["a", "b", "c"]


def test_a_full_queue_refuses_with_the_limit_and_the_remedy() -> None:
    scheduler = scheduler_of(num_slots=2, max_queue=1)
    for name in "abc":
        scheduler.add(request(name, [1]))
    with pytest.raises(OverloadedError, match=r"takes 3.*--max-queue"):
        scheduler.add(request("d", [1]))
    scheduler.cancel("b", 0.0)
    scheduler.add(request("d", [1]))


def test_an_id_in_use_is_refused_until_it_is_free() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1]))
    with pytest.raises(RequestError, match="id a is in use"):
        scheduler.add(request("a", [1]))
    scheduler.cancel("a", 0.0)
    scheduler.add(request("a", [1]))


def test_a_stop_token_ends_the_reply_and_is_not_part_of_it() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1], stop=frozenset({9})))
    run(scheduler)
    (event,) = run(scheduler, token=9)
    assert (event.token_ids, event.finish, event.stop_token_id) == ((), FinishReason.STOP, 9)
    assert scheduler.alive == ()


def test_a_stop_token_at_the_last_allowed_place_is_a_stop() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1], max_tokens=1, stop=frozenset({9})))
    assert run(scheduler, token=9)[0].finish is FinishReason.STOP


def test_max_tokens_ends_the_reply_with_length() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1], max_tokens=2))
    assert [(event.token_ids, event.finish) for event in run(scheduler, 3)] == [
        ((NEXT_TOKEN,), None),
        ((NEXT_TOKEN,), FinishReason.LENGTH),
    ]


def test_a_full_context_ends_the_reply_with_length() -> None:
    scheduler = scheduler_of(chunk_size=64, max_rows=64)
    scheduler.add(request("a", [1] * 61, max_tokens=1000))
    events = run(scheduler, 10)
    assert [event.finish for event in events] == [None, None, FinishReason.LENGTH]


@pytest.mark.parametrize(("num_steps", "phase"), [(0, "queued"), (1, "prefill"), (4, "decode")])
def test_cancel_ends_a_request_in_every_phase_and_frees_its_slot(num_steps: int, phase: str) -> None:
    scheduler = scheduler_of(num_slots=1)
    scheduler.add(request("a", range(9), max_tokens=9))
    run(scheduler, num_steps)
    (event,) = scheduler.cancel("a", 3.0)
    assert event.finish is FinishReason.CANCELLED
    assert scheduler.cancel("a", 3.0) == []
    scheduler.check()
    scheduler.add(request("b", [50]))
    assert shapes(scheduler, 1) == [[("b", 1)]], phase


def test_a_cancelled_stream_leaves_its_companion_alone() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1]))
    scheduler.add(request("b", [2]))
    run(scheduler)
    scheduler.cancel("a", 2.0)
    assert run(scheduler) == [Event("b", (NEXT_TOKEN,))]


def test_a_follow_up_resumes_after_the_tokens_that_its_slot_holds() -> None:
    scheduler = scheduler_of(chunk_size=8)
    scheduler.add(request("first", [1, 2, 3], max_tokens=3))
    run(scheduler, 3)
    # The last generated token was never fed to the device.
    scheduler.add(request("next", [1, 2, 3, NEXT_TOKEN, NEXT_TOKEN, NEXT_TOKEN, 8], max_tokens=1))
    batch = next_batch(scheduler, 2.0)
    assert batch.rows == [Row(0, 5, NEXT_TOKEN, False), Row(0, 6, 8, True)]
    assert [sequence.num_cached for sequence in scheduler.running] == [5]
    (event,) = scheduler.complete(batch, {"next": 1}, 2.0)
    assert event.num_cached_tokens == 5


def test_a_failed_request_ends_with_its_error_and_its_context_is_not_reused() -> None:
    scheduler = scheduler_of(chunk_size=8)
    scheduler.add(request("a", [1, 2, 3]))
    run(scheduler)
    (event,) = scheduler.fail(scheduler.running, "broken", 2.0)
    assert (event.finish, event.error) == (FinishReason.FAILED, "broken")
    scheduler.add(request("b", [1, 2, 3]))
    next_batch(scheduler, 2.0)
    assert [sequence.num_cached for sequence in scheduler.running] == [0]


def test_tokens_for_a_request_that_failed_meanwhile_are_not_needed() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1]))
    scheduler.add(request("b", [2]))
    batch = next_batch(scheduler, 2.0)
    scheduler.fail([batch.sampled[0]], "broken", 2.0)
    assert [event.request_id for event in scheduler.complete(batch, {"b": 5}, 2.0)] == ["b"]


def test_timings_tell_queue_prefill_and_decode_apart() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", range(5), max_tokens=2))
    run(scheduler, now_s=3.0)
    run(scheduler, now_s=4.5)
    (event,) = run(scheduler, now_s=8.0)
    timings = event.timings
    assert (timings.queue_s, timings.prefill_s, timings.decode_s) == (2.0, 1.5, 3.5)


def test_books_that_do_not_add_up_are_an_error() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", [1]))
    next_batch(scheduler, 0.0)
    scheduler.running[0].slot = None
    with pytest.raises(AssertionError, match="lack slots"):
        scheduler.check()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EngineSettings(num_slots=0), "num_slots is 0; it must be 1 or more"),
        (lambda: EngineSettings(chunk_size=-1), "chunk_size is -1; it must be 1 or more"),
        (lambda: EngineSettings(max_queue=-1), "max_queue is -1; it must be 0 or more"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(build: Callable[[], EngineSettings], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
