"""One reply in the making: engine requests in, text deltas out."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from npuserve.core import CacheSource, Event, FinishReason, Request, SamplingParams, Timings, TokenLogprob
from npuserve.engine.base import AnyEngine
from npuserve.errors import DeviceError, OverloadedError
from npuserve.server.event_router import EventRouter, Inbox
from npuserve.server.wire import FinishWord
from npuserve.text.grammar_constraint import GrammarConstraint
from npuserve.text.piece import NOTHING, Piece, TokenEntry
from npuserve.text.pipeline import Pipeline
from npuserve.text.text_ids import real_ids
from npuserve.text.tools.call import CallDelta


class Delta(NamedTuple):
    """News of one choice; `finish_reason` is set on its last delta and nowhere else.

    Reasoning comes before text, text before calls. `entries` are the generated tokens behind it where their log
    probabilities were asked for.
    """

    choice: int
    text: str
    finish_reason: FinishWord | None
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    entries: tuple[TokenEntry, ...] = ()

    def joined(self, later: "Delta") -> "Delta | None":
        """This and `later` in one, where that keeps their order; None otherwise."""
        if self.calls or (self.text and later.reasoning):
            return None
        return later._replace(
            text=self.text + later.text,
            reasoning=self.reasoning + later.reasoning,
            entries=self.entries + later.entries,
        )


@dataclass(slots=True)
class Choice:
    """One choice and what it cost.

    `lead` is text that comes before the first generated one (echo), `prompt` the number of the prompt among those of
    the request. `num_logprobs` and `prompt_logprobs` are as in Request; with `entry_at_end` the token that ended the
    turn has an entry too. `only_prompt` wants nothing generated, but the prompt's log probabilities. `token_ids` are
    the generated tokens so far, with the one that ended the turn.
    """

    index: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    pipeline: Pipeline
    lead: str = ""
    request_id: str = ""
    counted_prompt_tokens: int | None = None
    num_cached_tokens: int = 0
    cache_source: CacheSource | None = None
    num_completion_tokens: int = 0
    timings: Timings = field(default_factory=Timings)
    finish_reason: FinishWord | None = None
    prompt: int = 0
    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    entry_at_end: bool = False
    only_prompt: bool = False
    constraint: GrammarConstraint | None = None
    prompt_entries: tuple[TokenLogprob, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    _said: list[Piece] = field(default_factory=list)

    @property
    def said(self) -> Piece:
        """All that the choice has given so far."""
        pieces = self._said
        return Piece(
            "".join([piece.text for piece in pieces]),
            "".join([piece.reasoning for piece in pieces]),
            tuple(call for piece in pieces for call in piece.calls),
            tuple(entry for piece in pieces for entry in piece.entries),
        )

    @property
    def num_reasoning_tokens(self) -> int:
        return self.pipeline.num_reasoning_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """The device's own count of a prompt that it got as text, once told, else that of our ids."""
        return self.counted_prompt_tokens or len(self.prompt_ids)

    def feed(self, event: Event) -> Delta | None:
        """The delta that `event` makes, None when it makes nothing visible. Raises DeviceError for a failed one."""
        self.prompt_entries += event.prompt_logprobs
        piece = NOTHING if self.only_prompt else self._push(event)
        if self.lead:
            piece, self.lead = piece._replace(text=self.lead + piece.text), ""
        if event.finish is not None:
            self._finish(event)
        if piece == NOTHING and self.finish_reason is None:
            return None
        if piece != NOTHING:
            self._said.append(piece)
        return Delta(self.index, piece.text, self.finish_reason, piece.reasoning, piece.calls, piece.entries)

    def _push(self, event: Event) -> Piece:
        if not self.pipeline.stopped:
            self.token_ids += real_ids(event.token_ids)
        piece = self.pipeline.push(event.token_ids, event.logprobs)
        if event.finish is None:
            return piece
        last = event.stop_token_id if self.entry_at_end and self.num_logprobs is not None else None
        return piece.joined(self.pipeline.finish(None if last is None else (last, event.logprobs[-1])))

    def _finish(self, event: Event) -> None:
        if self.constraint is not None and self.constraint.failure is not None:
            raise self.constraint.failure
        stopped = self.pipeline.stopped
        if event.finish is FinishReason.FAILED and not stopped:
            raise DeviceError(event.error or "the device failed")
        if event.finish is FinishReason.CANCELLED and not stopped:
            raise OverloadedError("the request was cancelled by the server", code="cancelled")
        self.counted_prompt_tokens = event.num_prompt_tokens
        self.num_cached_tokens = event.num_cached_tokens
        self.cache_source = event.cache_source
        self.timings = event.timings
        # A token that ends the turn was generated like any other, though it has no text.
        ended_by_token = event.stop_token_id is not None and not stopped
        del self.token_ids[self.pipeline.num_tokens :]
        if event.stop_token_id is not None and not stopped:
            self.token_ids.append(event.stop_token_id)
        self.num_completion_tokens = 0 if self.only_prompt else self.pipeline.num_tokens + ended_by_token
        if self.only_prompt or (event.finish is FinishReason.LENGTH and not stopped):
            self.finish_reason = "length"
        else:
            self.finish_reason = "tool_calls" if self.pipeline.has_calls else "stop"


class Reply:
    """The choices of one HTTP reply, from `start` to `close`; used from the event loop only.

    `close` must always be called: it cancels in the engine what has not ended.
    """

    def __init__(
        self, engine: AnyEngine, router: EventRouter, id_prefix: str, choices: Sequence[Choice], cache_salt: str = ""
    ) -> None:
        self.id = f"{id_prefix}-{secrets.token_hex(12)}"
        self.name: str | None = None  # what the client calls it, where it does
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
        """Deltas as they come, news of one choice in one where that can be; an empty list when the inbox was woken.

        Raises DeviceError when the engine failed a choice, RequestError when its grammar did.
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
        request = Request(
            choice.request_id,
            choice.prompt_ids,
            choice.sampling,
            time.monotonic(),
            self._cache_salt,
            num_logprobs=choice.num_logprobs,
            prompt_logprobs=choice.prompt_logprobs,
            constraint=choice.constraint,
        )
        self._router.open(choice.request_id, self.inbox)
        self._open[choice.request_id] = choice
        try:
            self._engine.submit(request)
        except BaseException:
            del self._open[choice.request_id]
            self._router.close(choice.request_id)
            raise

    def _combine(self, events: list[Event]) -> list[Delta]:
        deltas: dict[int, list[Delta]] = {}
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
                own = deltas.setdefault(choice.index, [])
                joined = own[-1].joined(delta) if own else None
                if joined is None:
                    own.append(delta)
                else:
                    own[-1] = joined
        return [delta for own in deltas.values() for delta in own]
