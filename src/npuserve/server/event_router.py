"""Carries the engine's events from its thread to the replies that wait for them on the event loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

from npuserve.core import Event


class Inbox:
    """Events of one reply, in order. One task waits; the loop's callbacks fill."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Raise `error` from the next `get`, before any event that is still here."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Let `get` return what there is, be it nothing."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> list[Event]:
        """All events that are here, after waiting for the first; none when woken for another reason."""
        if not self._events and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        events = list(self._events)
        self._events.clear()
        return events


class EventRouter:
    """`deliver` is the engine's; everything else belongs to the event loop that was bound."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inboxes: dict[str, Inbox] = {}
        # Told of every event, also of those nobody waits for any more; on the event loop.
        self.observe: Callable[[Sequence[Event]], None] | None = None

    @property
    def num_open(self) -> int:
        """Requests whose last event has not been asked for yet."""
        return len(self._inboxes)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver on `loop` from now on."""
        self._loop = loop

    def open(self, request_id: str, inbox: Inbox) -> None:
        self._inboxes[request_id] = inbox

    def close(self, request_id: str) -> None:
        """Drop what is still to come for `request_id`; nothing happens when it is closed already."""
        self._inboxes.pop(request_id, None)

    def fail_all(self, error: BaseException) -> None:
        """End every open reply with `error`."""
        for inbox in set(self._inboxes.values()):
            inbox.fail(error)

    def deliver(self, events: Sequence[Event]) -> None:
        """Hand over a step's events: one crossing between threads, however many they are."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._route, events)

    def _route(self, events: Sequence[Event]) -> None:
        inboxes = self._inboxes
        for event in events:
            inbox = inboxes.get(event.request_id)
            if inbox is not None:
                inbox.put(event)
        if self.observe is not None:
            self.observe(events)
