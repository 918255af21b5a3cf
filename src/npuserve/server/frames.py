"""The bytes of a streamed reply: everything but the text is formatted once per reply."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from npuserve.server.errors import error_json
from npuserve.server.logprobs import CompletionEntries, chat_logprobs
from npuserve.server.reply import Choice, Delta, Reply
from npuserve.server.usage import timings_of, usage_of
from npuserve.server.wire import (
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    Completion,
    CompletionChoice,
    FunctionCall,
    ToolCall,
)
from npuserve.text.piece import Piece
from npuserve.text.token_bytes import TokenBytes

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class Frames(Protocol):
    """One format of replies, made for one reply."""

    def opening(self) -> bytes:
        """The events before the first delta."""

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta."""

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """The events after the last delta."""

    def error(self, error: BaseException) -> bytes:
        """The last event of a reply that broke after its first byte."""

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        """The unstreamed reply."""


class _Chunks:
    """What chat and text chunks share: the fields around `choices`, usage and the end."""

    def __init__(self, reply: Reply, object_name: str, model: str, *, include_usage: bool) -> None:
        head = {"id": reply.id, "object": object_name, "created": reply.created, "model": model}
        self._reply = reply
        self._model = model
        self._include_usage = include_usage
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        # OpenAI's: when usage was asked for, every chunk has the field, null but in the last.
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def opening(self) -> bytes:
        return b""

    def _end(self, last_choice: bytes, choices: Sequence[Choice]) -> bytes:
        return self._head + last_choice + b'],"timings":' + _encode(timings_of(choices)) + self._tail

    def _around(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            "id": self._reply.id,
            "created": self._reply.created,
            "model": self._model,
            "usage": usage_of(choices),
            "timings": timings_of(choices),
        }

    def closing(self, choices: Sequence[Choice]) -> bytes:
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(usage_of(choices)) + b"}\n\n" + DONE

    def error(self, error: BaseException) -> bytes:
        return b"data: " + error_json(error) + b"\n\n"


class ChatFrames(_Chunks):
    """`chat.completion.chunk`: the role in the first delta of a choice, then its news, then the finish reason."""

    def __init__(self, reply: Reply, model: str, table: TokenBytes, *, include_usage: bool) -> None:
        super().__init__(reply, "chat.completion.chunk", model, include_usage=include_usage)
        self._table = table
        self._started: set[int] = set()
        self._after_news = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def delta(self, delta: Delta) -> bytes:
        index = b'{"index":%d,"delta":{' % delta.choice
        start = self._head + index
        frames: list[bytes] = []
        if delta.choice not in self._started:
            self._started.add(delta.choice)
            frames.append(start + b'"role":"assistant","content":""' + self._after_news)
        news = _news(delta)
        entries = b"null" if not delta.entries else _encode(chat_logprobs(delta.entries, self._table))
        for one in news:
            # The entries go with the first of the news that they belong to.
            frames.append(start + one + b'},"logprobs":' + entries + b',"finish_reason":null}]' + self._tail)
            entries = b"null"
        if delta.finish_reason is not None:
            last = index + b'},"logprobs":' + entries + b',"finish_reason":"' + delta.finish_reason.encode() + b'"}'
            frames.append(self._end(last, self._reply.choices))
        elif entries != b"null":
            frames.append(start + b'},"logprobs":' + entries + b',"finish_reason":null}]' + self._tail)
        return b"".join(frames)

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        made = [
            ChatChoice(
                index=choice.index,
                message=_message(choice.said),
                logprobs=chat_logprobs(choice.said.entries, self._table),
                finish_reason=choice.finish_reason or "stop",
            )
            for choice in choices
        ]
        return _encode(ChatCompletion(choices=made, **self._around(choices)))


def _news(delta: Delta) -> list[bytes]:
    """The members of a chunk's `delta`, one chunk each."""
    news: list[bytes] = []
    if delta.reasoning:
        news.append(b'"reasoning_content":' + _encode(delta.reasoning))
    if delta.text:
        news.append(b'"content":' + _encode(delta.text))
    for call in delta.calls:
        if call.name is not None:
            function = {"name": call.name, "arguments": call.arguments}
            one = {"index": call.number, "id": call.id, "type": "function", "function": function}
        else:
            one = {"index": call.number, "function": {"arguments": call.arguments}}
        news.append(b'"tool_calls":[' + _encode(one) + b"]")
    return news


def _message(said: Piece) -> ChatMessage:
    calls: list[ToolCall] = []
    for delta in said.calls:
        if delta.name is not None:
            calls.append(ToolCall(id=delta.id or "", function=FunctionCall(delta.name, "")))
    arguments = ["" for _ in calls]
    for delta in said.calls:
        arguments[delta.number] += delta.arguments
    made = [
        ToolCall(id=call.id, function=FunctionCall(call.function.name, text))
        for call, text in zip(calls, arguments, strict=True)
    ]
    return ChatMessage(
        content=said.text if said.text or not made else None,
        reasoning_content=said.reasoning or UNSET,
        tool_calls=made or UNSET,
    )


class CompletionFrames(_Chunks):
    """`text_completion`, the same object for chunks and for the whole.

    With `logprobs` every choice has them, those of the prompt first when that is `echo`ed. Of the choices of a prompt
    the `num_kept` with the highest mean log probability are sent; all where that is None.
    """

    def __init__(
        self,
        reply: Reply,
        model: str,
        table: TokenBytes,
        *,
        include_usage: bool,
        logprobs: bool = False,
        echo: bool = False,
        num_kept: int | None = None,
    ) -> None:
        super().__init__(reply, "text_completion", model, include_usage=include_usage)
        self._num_kept = num_kept
        self._entries = (
            {choice.index: CompletionEntries(choice, table, echo=echo) for choice in reply.choices} if logprobs else {}
        )

    def delta(self, delta: Delta) -> bytes:
        choice = b'{"index":%d,"text":' % delta.choice + _encode(delta.text) + b',"logprobs":'
        own = self._entries.get(delta.choice)
        choice += b"null" if own is None else _encode(own.take(delta.entries))
        if delta.finish_reason is None:
            return self._head + choice + b',"finish_reason":null}]' + self._tail
        last = choice + b',"finish_reason":"' + delta.finish_reason.encode() + b'"}'
        return self._end(last, self._reply.choices)

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        text_of = dict(zip((choice.index for choice in choices), texts, strict=True))
        made = [
            CompletionChoice(
                index=index,
                text=text_of[choice.index],
                logprobs=self._entries[choice.index].take(choice.said.entries) if self._entries else None,
                finish_reason=choice.finish_reason or "stop",
            )
            for index, choice in enumerate(choices if self._num_kept is None else best(choices, self._num_kept))
        ]
        return _encode(Completion(choices=made, **self._around(choices)))


def best(choices: Sequence[Choice], num_kept: int) -> list[Choice]:
    """The `num_kept` choices of each prompt whose tokens have the highest mean log probability, best first."""
    kept: list[Choice] = []
    for prompt in dict.fromkeys(choice.prompt for choice in choices):
        own = [choice for choice in choices if choice.prompt == prompt]
        kept += sorted(own, key=_mean_logprob, reverse=True)[:num_kept]
    return kept


def _mean_logprob(choice: Choice) -> float:
    entries = choice.said.entries
    return sum(entry.logprob.logprob for entry in entries) / len(entries) if entries else 0.0
