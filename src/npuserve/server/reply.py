"""One reply in the making: engine requests in, text deltas out."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from npuserve.core import Event, FinishReason, Request, SamplingParams, Timings
from npuserve.engine.base import AnyEngine
from npuserve.errors import DeviceError, OverloadedError
from npuserve.server.event_router import EventRouter, Inbox
from npuserve.server.wire import FinishWord
from npuserve.text.pipeline import Pipeline


class Delta(NamedTuple):
    """New text of one choice; `finish_reason` is set on its last delta and nowhere else."""

    choice: int
    text: str
    finish_reason: FinishWord | None


@dataclass(slots=True)
class Choice:
    """One choice and what it cost; `lead` is text that comes before the first generated one (echo)."""

    index: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    pipeline: Pipeline
    lead: str = ""
    request_id: str = ""
    counted_prompt_tokens: int | None = None
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    timings: Timings = field(default_factory=Timings)
    finish_reason: FinishWord | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """The device's own count of a prompt that it got as text, once told, else that of our ids."""
        return self.counted_prompt_tokens or len(self.prompt_ids)

    def feed(self, event: Event) -> Delta | None:
        """The delta that `event` makes, None when it makes nothing visible. Raises DeviceError for a failed one."""
        text = self.lead + self.pipeline.push(event.token_ids)
        self.lead = ""
        if event.finish is not None:
            text += self.pipeline.finish()
            self._finish(event)
        return Delta(self.index, text, self.finish_reason) if text or self.finish_reason else None

    def _finish(self, event: Event) -> None:
        stopped = self.pipeline.stopped
        if event.finish is FinishReason.FAILED and not stopped:
            raise DeviceError(event.error or "the device failed")
        if event.finish is FinishReason.CANCELLED and not stopped:
            raise OverloadedError("the request was cancelled by the server", code="cancelled")
        self.counted_prompt_tokens = event.num_prompt_tokens
        self.num_cached_tokens = event.num_cached_tokens
        self.timings = event.timings
        # A token that ends the turn was generated like any other, though it has no text.
        ended_by_token = event.stop_token_id is not None and not stopped
        self.num_completion_tokens = self.pipeline.num_tokens + ended_by_token
        self.finish_reason = "length" if event.finish is FinishReason.LENGTH and not stopped else "stop"


class Reply:
    """The choices of one HTTP reply, from `start` to `close`; used from the event loop only.

    `close` must always be called: it cancels in the engine what has not ended.
    """

    def __init__(
        self, engine: AnyEngine, router: EventRouter, id_prefix: str, choices: Sequence[Choice], cache_salt: str = ""
    ) -> None:
        self.id = f"{id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.choices = choices
        self.inbox = Inbox()
        self._engine = engine
        self._router = router
        self._cache_salt = cache_salt
        self._open: dict[str, Choice] = {}

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def start(self) -> None:
        """Submit every choice; when one is refused the others are withdrawn and its error is raised."""
        try:
            for choice in self.choices:
                if choice.sampling.max_tokens > 0:
                    self._submit(choice)
                else:
                    choice.finish_reason = "length"
        except BaseException:
            self.close()
            raise

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Deltas as they come, at most one of each choice in a list; an empty list when the inbox was woken.

        Raises DeviceError when the engine failed a choice.
        """
        echoed = [Delta(choice.index, choice.lead, "length") for choice in self.choices if choice.finish_reason]
        if echoed:
            yield echoed
        while self._open:
            events = await self.inbox.get()
            deltas = self._combine(events)
            if deltas or not events:
                yield deltas

    def close(self) -> None:
        """Cancel what has not ended and stop listening; safe to call twice."""
        for request_id in self._open:
            self._router.close(request_id)
            self._engine.cancel(request_id)
        self._open.clear()

    def _submit(self, choice: Choice) -> None:
        choice.request_id = f"{self.id}-{choice.index}"
        request = Request(choice.request_id, choice.prompt_ids, choice.sampling, time.monotonic(), self._cache_salt)
        self._router.open(choice.request_id, self.inbox)
        self._open[choice.request_id] = choice
        try:
            self._engine.submit(request)
        except BaseException:
            del self._open[choice.request_id]
            self._router.close(choice.request_id)
            raise

    def _combine(self, events: list[Event]) -> list[Delta]:
        deltas: dict[int, Delta] = {}
        for event in events:
            choice = self._open[event.request_id]
            was_stopped = choice.pipeline.stopped
            delta = choice.feed(event)
            if event.finish is not None:
                del self._open[event.request_id]
                self._router.close(event.request_id)
            elif choice.pipeline.stopped and not was_stopped:
                self._engine.cancel(event.request_id)
            if delta is not None:
                earlier = deltas.get(choice.index)
                deltas[choice.index] = delta if earlier is None else delta._replace(text=earlier.text + delta.text)
        return list(deltas.values())
