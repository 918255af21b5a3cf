"""The objects and events of Anthropic's Messages API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from npuserve.server.blocks import Block, Blocks
from npuserve.server.errors import messages_error_json
from npuserve.server.reply import Choice, Delta, Reply

_encode = msgspec.json.Encoder().encode


class AnthropicFrames:
    """One message: `message_start`, the life of each content block, `message_delta`, `message_stop`."""

    def __init__(self, reply: Reply, model: str) -> None:
        self._reply = reply
        self._model = model
        self._blocks = Blocks(self)

    def opening(self) -> bytes:
        usage = {"input_tokens": self._reply.choices[0].num_prompt_tokens, "output_tokens": 0}
        return _event("message_start", message=self._message([], usage)) + _event("ping")

    def delta(self, delta: Delta) -> bytes:
        return self._blocks.feed(delta)

    def closing(self, choices: Sequence[Choice]) -> bytes:
        choice = choices[0]
        end = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.pipeline.stop_string}
        return self._blocks.close() + _event("message_delta", delta=end, usage=_usage(choice)) + _event("message_stop")

    def error(self, error: BaseException) -> bytes:
        return b"event: error\ndata: " + messages_error_json(error) + b"\n\n"

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        choice = choices[0]
        said = choice.said
        self._blocks.feed(Delta(0, said.text, choice.finish_reason, said.reasoning, said.calls))
        content = [_content(block) for block in self._blocks.blocks]
        return _encode(self._message(content, _usage(choice), choice))

    def opened(self, block: Block) -> bytes:
        empty: dict[str, Any]
        match block.kind:
            case "reasoning":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
            case "text":
                empty = {"type": "text", "text": ""}
            case "call":
                empty = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        return _event("content_block_start", index=block.index, content_block=empty)

    def added(self, block: Block, text: str) -> bytes:
        match block.kind:
            case "reasoning":
                delta = {"type": "thinking_delta", "thinking": text}
            case "text":
                delta = {"type": "text_delta", "text": text}
            case "call":
                delta = {"type": "input_json_delta", "partial_json": text}
        return _event("content_block_delta", index=block.index, delta=delta)

    def closed(self, block: Block) -> bytes:
        return _event("content_block_stop", index=block.index)

    def _message(
        self, content: list[dict[str, Any]], usage: dict[str, int], choice: Choice | None = None
    ) -> dict[str, Any]:
        return {
            "id": self._reply.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None if choice is None else _stop_reason(choice),
            "stop_sequence": None if choice is None else choice.pipeline.stop_string,
            "usage": usage,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"


def _content(block: Block) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "text":
            return {"type": "text", "text": block.text}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _arguments(block.text)}


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments; none for a call that was cut before they were an object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _stop_reason(choice: Choice) -> str:
    match choice.finish_reason:
        case "length":
            return "max_tokens"
        case "tool_calls":
            return "tool_use"
        case _:
            return "end_turn" if choice.pipeline.stop_string is None else "stop_sequence"


def _usage(choice: Choice) -> dict[str, int]:
    """Anthropic's input tokens are those that no cache gave."""
    return {
        "input_tokens": choice.num_prompt_tokens - choice.num_cached_tokens,
        "cache_read_input_tokens": choice.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": choice.num_completion_tokens,
    }
