"""The bytes of a streamed reply: everything but the text is formatted once per reply."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from npuserve.server.errors import error_json
from npuserve.server.reply import Choice, Delta, Reply
from npuserve.server.usage import timings_of, usage_of
from npuserve.server.wire import ChatChoice, ChatCompletion, ChatMessage, Completion, CompletionChoice

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class Frames(Protocol):
    """One format of replies, made for one reply."""

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
    """`chat.completion.chunk`: the role in the first delta of a choice, then text, then the finish reason."""

    def __init__(self, reply: Reply, model: str, *, include_usage: bool) -> None:
        super().__init__(reply, "chat.completion.chunk", model, include_usage=include_usage)
        self._started: set[int] = set()
        self._after_text = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def delta(self, delta: Delta) -> bytes:
        index = b'{"index":%d,"delta":{' % delta.choice
        frames = b""
        if delta.choice not in self._started:
            self._started.add(delta.choice)
            frames = self._head + index + b'"role":"assistant","content":""' + self._after_text
        if delta.text:
            frames += self._head + index + b'"content":' + _encode(delta.text) + self._after_text
        if delta.finish_reason is not None:
            last = index + b'},"logprobs":null,"finish_reason":"' + delta.finish_reason.encode() + b'"}'
            frames += self._end(last, self._reply.choices)
        return frames

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        made = [
            ChatChoice(
                index=choice.index, message=ChatMessage(content=text), finish_reason=choice.finish_reason or "stop"
            )
            for choice, text in zip(choices, texts, strict=True)
        ]
        return _encode(ChatCompletion(choices=made, **self._around(choices)))


class CompletionFrames(_Chunks):
    """`text_completion`, the same object for chunks and for the whole."""

    def __init__(self, reply: Reply, model: str, *, include_usage: bool) -> None:
        super().__init__(reply, "text_completion", model, include_usage=include_usage)

    def delta(self, delta: Delta) -> bytes:
        choice = b'{"index":%d,"text":' % delta.choice + _encode(delta.text)
        if delta.finish_reason is None:
            return self._head + choice + b',"logprobs":null,"finish_reason":null}]' + self._tail
        last = choice + b',"logprobs":null,"finish_reason":"' + delta.finish_reason.encode() + b'"}'
        return self._end(last, self._reply.choices)

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        made = [
            CompletionChoice(index=choice.index, text=text, finish_reason=choice.finish_reason or "stop")
            for choice, text in zip(choices, texts, strict=True)
        ]
        return _encode(Completion(choices=made, **self._around(choices)))
