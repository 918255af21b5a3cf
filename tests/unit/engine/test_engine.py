import threading
from collections.abc import Iterator
from contextlib import contextmanager

from npuserve.core import Event, FinishReason, Request, SamplingParams
from npuserve.devices.null import NullDevice
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings


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

    def final(self, request_id: str) -> Event:
        """Wait for the final event of a request."""

        def found() -> Event | None:
            return next((e for e in self._events if e.request_id == request_id and e.finish is not None), None)

        with self._arrived:
            event = self._arrived.wait_for(found, timeout=20)
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


def test_two_requests_run_to_the_end() -> None:
    mailbox = Mailbox()
    with running(Engine(NullDevice(vocab_size=100), EngineSettings(), mailbox.deliver)) as engine:
        engine.submit(greedy("a", 1, 2, 3, max_tokens=5))
        engine.submit(greedy("b", 4, max_tokens=7))
        assert len(mailbox.tokens("a")) == 5
        assert len(mailbox.tokens("b")) == 7
        assert mailbox.final("a").finish is FinishReason.LENGTH
