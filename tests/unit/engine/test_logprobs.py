import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.core import Event, Request, SamplingParams, TokenLogprob
from npuserve.devices.null import NullDevice
from npuserve.engine import runner
from npuserve.engine.engine import Engine
from npuserve.engine.logprobs import token_logprob
from npuserve.engine.scheduler import Scheduler
from npuserve.engine.sequence import Sequence
from npuserve.engine.settings import EngineSettings
from patience import WAIT_S

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(np.log(weights / weights.sum()))


@given(st.integers(1, 300), st.integers(0, 20), st.integers(0, 1 << 30))
def test_entries_are_the_log_softmax_highest_first(size: int, num_top: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=8, size=size).astype(np.float32)
    token = int(rng.integers(size))
    entry = token_logprob(logits, token, num_top)
    expected = softmax(logits)
    assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
    order = np.argsort(-logits, kind="stable")[:num_top]
    assert [other for other, _ in entry.top] == list(order)
    assert [logprob for _, logprob in entry.top] == pytest.approx(list(expected[order]), abs=1e-5)
    assert all(logprob == entry.logprob for other, logprob in entry.top if other == token)


def run(device: NullDevice, request: Request, settings: EngineSettings | None = None) -> list[Event]:
    events: list[Event] = []
    ended = threading.Event()

    def deliver(news: list[Event]) -> None:
        events.extend(event for event in news if event.request_id == request.id)
        if any(event.finish for event in news):
            ended.set()

    engine = Engine(device, settings or EngineSettings(), deliver)
    engine.start()
    engine.submit(request)
    assert ended.wait(WAIT_S)
    engine.stop()
    return events


def test_each_generated_token_and_the_stop_token_has_an_entry() -> None:
    device = NullDevice(vocab_size=100, script=lambda history: history[-1] + 1)
    sampling = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=frozenset({8}))
    events = run(device, Request("r", (5,), sampling, num_logprobs=2))
    entries = [entry for event in events for entry in event.logprobs]
    assert [event.token_ids for event in events] == [(6,), (7,), ()]
    assert [entry.top[0][0] for entry in entries] == [6, 7, 8]
    assert all(entry.logprob == entry.top[0][1] and len(entry.top) == 2 for entry in entries)


def test_entries_describe_the_model_not_the_sampling() -> None:
    plain = run(NullDevice(vocab_size=100), Request("r", (5,), GREEDY, num_logprobs=1))
    sampling = SamplingParams(temperature=0.0, max_tokens=4, logit_bias=((9, 100.0),))
    biased = run(NullDevice(vocab_size=100), Request("r", (5,), sampling, num_logprobs=1))
    assert plain[0].logprobs[0].top == biased[0].logprobs[0].top
    assert biased[0].token_ids == (9,)
    assert biased[0].logprobs[0].logprob < plain[0].logprobs[0].logprob


def prompt_entries(prompt: tuple[int, ...], chunk_size: int, *, warm: bool = False) -> list[TokenLogprob]:
    device = NullDevice(vocab_size=100)
    events: list[Event] = []
    ended = threading.Semaphore(0)

    def deliver(news: list[Event]) -> None:
        events.extend(news)
        for event in news:
            if event.finish:
                ended.release()

    engine = Engine(device, EngineSettings(chunk_size=chunk_size), deliver)
    engine.start()
    if warm:
        engine.submit(Request("before", prompt, GREEDY))
        assert ended.acquire(timeout=WAIT_S)
    engine.submit(Request("r", prompt, GREEDY, num_logprobs=1, prompt_logprobs=True))
    assert ended.acquire(timeout=WAIT_S)
    engine.stop()
    own = [event for event in events if event.request_id == "r"]
    assert own[0].prompt_logprobs
    assert not any(event.prompt_logprobs for event in own[1:])
    return list(own[0].prompt_logprobs)


def test_prompt_entries_are_those_of_the_same_tokens_generated() -> None:
    generated = run(NullDevice(vocab_size=100), Request("r", (5,), GREEDY, num_logprobs=1))
    tokens = tuple(token for event in generated for token in event.token_ids)
    assert prompt_entries((5, *tokens), 64) == [entry for event in generated for entry in event.logprobs]


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("warm", [False, True])
def test_prompt_entries_do_not_depend_on_chunks_or_warm_slots(chunk_size: int, warm: bool) -> None:
    prompt = tuple(range(10, 30))
    entries = prompt_entries(prompt, chunk_size, warm=warm)
    assert len(entries) == len(prompt) - 1
    assert entries == prompt_entries(prompt, 64)


def test_prompt_rows_run_again_are_noted_once() -> None:
    """A sequence that lost its slot in the middle of its prompt goes back to where its state was saved."""
    device = NullDevice(vocab_size=100)
    scheduler = Scheduler(EngineSettings(chunk_size=4), device.capabilities)
    sequence = Sequence(Request("r", tuple(range(10)), GREEDY, num_logprobs=0, prompt_logprobs=True))
    scheduler.add(sequence)
    scheduler.admit(0.0)
    events: list[Event] = []
    for step in range(4):
        batch = scheduler.schedule()
        events += scheduler.complete(batch, runner.run(device, batch, time.monotonic).tokens, 0.0)
        if step == 1:
            sequence.num_computed = 3
    plain = run(
        NullDevice(vocab_size=100), Request("r", tuple(range(10)), GREEDY, num_logprobs=0, prompt_logprobs=True)
    )
    assert events[0].prompt_logprobs == plain[0].prompt_logprobs
