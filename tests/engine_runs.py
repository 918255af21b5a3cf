"""An engine on the null device with a store, and what its requests must give."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from npuserve.core import Event, Request, Row, SamplingParams
from npuserve.devices.base import Device
from npuserve.devices.null import NullDevice
from npuserve.engine.engine import Engine
from npuserve.engine.sampler import Sampler
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore, open_context_store
from patience import WAIT_S


class Replies:
    """Collects events and lets a test wait for final ones."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._events: dict[str, list[Event]] = {}

    def deliver(self, events: list[Event]) -> None:
        with self._arrived:
            for event in events:
                self._events.setdefault(event.request_id, []).append(event)
            self._arrived.notify_all()

    def of(self, request_id: str) -> list[Event]:
        with self._arrived:
            return list(self._events.get(request_id, []))

    def final(self, request_id: str) -> Event:
        """Wait for the final event of a request."""

        def is_final() -> bool:
            events = self._events.get(request_id, [])
            return len(events) > 0 and events[-1].finish is not None

        with self._arrived:
            assert self._arrived.wait_for(is_final, WAIT_S), f"{request_id} did not end"
            return self._events[request_id][-1]

    def wait_for_tokens(self, request_id: str, count: int) -> None:
        """Wait until a request has generated so many tokens."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._tokens(request_id)) >= count, WAIT_S)

    def tokens(self, request_id: str) -> list[int]:
        """All tokens of a request, once it has ended without a fault."""
        final = self.final(request_id)
        assert final.error is None, final.error
        with self._arrived:
            return self._tokens(request_id)

    def _tokens(self, request_id: str) -> list[int]:
        return [token for event in self._events.get(request_id, []) for token in event.token_ids]


@contextmanager
def running(
    device: Device,
    replies: Replies,
    settings: EngineSettings | None = None,
    store: ContextStore | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Engine]:
    """An engine that runs in the block and has saved what it could at its end."""
    engine = Engine(device, settings or EngineSettings(), replies.deliver, store=store, clock=clock)
    engine.start()
    try:
        yield engine
    finally:
        assert engine.stop()


def store_for(device: Device, settings: KvSettings | None = None) -> ContextStore:
    """A store for the pages of `device`; 1 GiB of RAM unless told otherwise."""
    can = device.capabilities
    settings = settings or KvSettings(ram_bytes=1 << 30)
    store = open_context_store(settings, "tiny", can.page_format, can.page_bytes)
    assert store is not None
    return store


def greedy(request_id: str, prompt: Sequence[int], max_tokens: int = 8, salt: str = "") -> Request:
    return Request(request_id, tuple(prompt), SamplingParams(temperature=0.0, max_tokens=max_tokens), cache_salt=salt)


def cold(request: Request, *, vocab_size: int, context_length: int) -> list[int]:
    """What `request` gives on a fresh null device, without engine, slots or store; it has no stop tokens."""
    device = NullDevice(vocab_size=vocab_size, num_slots=1, max_rows=context_length, context_length=context_length)
    sampler = Sampler(request.sampling, len(request.prompt_ids))
    tokens, num_fed = list(request.prompt_ids), 0
    while len(tokens) - len(request.prompt_ids) < request.sampling.max_tokens and len(tokens) < context_length:
        rows = [Row(0, at, tokens[at], at == len(tokens) - 1) for at in range(num_fed, len(tokens))]
        num_fed = len(tokens)
        tokens.append(sampler.sample(device.step(rows).logits[0], tokens))
    return tokens[len(request.prompt_ids) :]
