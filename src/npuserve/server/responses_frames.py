"""The objects and events of OpenAI's Responses API."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from npuserve.core import SamplingParams
from npuserve.server.blocks import Block, Blocks
from npuserve.server.errors import error_detail
from npuserve.server.logprobs import chat_logprobs
from npuserve.server.reply import Choice, Delta, Reply
from npuserve.server.usage import usage_of
from npuserve.text.piece import TokenEntry
from npuserve.text.token_bytes import TokenBytes

_encode = msgspec.json.Encoder().encode
_ITEM_NAMES = {"reasoning": "rs", "text": "msg", "call": "fc"}


class ResponsesFrames:
    """One response: `created`, `in_progress`, the life of each output item, then `completed` or `incomplete`."""

    def __init__(
        self, reply: Reply, model: str, table: TokenBytes, body: Mapping[str, Any], sampling: SamplingParams
    ) -> None:
        self._reply = reply
        self._model = model
        self._table = table
        self._body = body
        self._sampling = sampling
        self._blocks = Blocks(self)
        self._sequence = 0
        self._entries: tuple[TokenEntry, ...] = ()

    def opening(self) -> bytes:
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def delta(self, delta: Delta) -> bytes:
        self._entries = delta.entries
        return self._blocks.feed(delta)

    def closing(self, choices: Sequence[Choice]) -> bytes:
        closed = self._blocks.close()
        status = self._final_status()
        return closed + self._event(f"response.{status}", response=self._response(status))

    def error(self, error: BaseException) -> bytes:
        told = error_detail(error)
        return self._event("error", code=told.code, message=told.message, param=told.param)

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        choice = choices[0]
        said = choice.said
        self.delta(Delta(0, said.text, choice.finish_reason, said.reasoning, said.calls, said.entries))
        return _encode(self._response(self._final_status()))

    def opened(self, block: Block) -> bytes:
        added = self._event("response.output_item.added", output_index=block.index, item=self._item(block, empty=True))
        if block.kind == "call":
            return added
        return added + self._event("response.content_part.added", **self._place(block), part=_part(block, ""))

    def added(self, block: Block, text: str) -> bytes:
        match block.kind:
            case "reasoning":
                return self._event("response.reasoning_text.delta", **self._place(block), delta=text)
            case "text":
                logprobs = self._logprobs(self._entries)
                return self._event("response.output_text.delta", **self._place(block), delta=text, logprobs=logprobs)
            case "call":
                place = {"item_id": self._id(block), "output_index": block.index}
                return self._event("response.function_call_arguments.delta", **place, delta=text)

    def closed(self, block: Block) -> bytes:
        place = self._place(block)
        done: bytes
        match block.kind:
            case "reasoning":
                done = self._event("response.reasoning_text.done", **place, text=block.text)
            case "text":
                done = self._event("response.output_text.done", **place, text=block.text, logprobs=[])
            case "call":
                del place["content_index"]
                done = self._event(
                    "response.function_call_arguments.done", **place, name=block.name, arguments=block.text
                )
        if block.kind != "call":
            done += self._event("response.content_part.done", **place, part=_part(block, block.text))
        return done + self._event("response.output_item.done", output_index=block.index, item=self._item(block))

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        data = _encode({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _id(self, block: Block) -> str:
        return f"{_ITEM_NAMES[block.kind]}_{self._reply.id.partition('-')[2]}_{block.index}"

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._id(block), "output_index": block.index, "content_index": 0}

    def _item(self, block: Block, *, empty: bool = False) -> dict[str, Any]:
        status = "in_progress" if empty else self._item_status(block)
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        content = [] if empty else [_part(block, block.text)]
        match block.kind:
            case "reasoning":
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "text":
                if content and (logprobs := self._logprobs(self._reply.choices[0].said.entries)):
                    content[0]["logprobs"] = logprobs
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "call":
                call = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
                return {**item, "type": "function_call", **call}

    def _item_status(self, block: Block) -> str:
        """A reply that was cut has cut its last item."""
        last = block.index == len(self._blocks.blocks) - 1
        return "incomplete" if last and self._final_status() == "incomplete" else "completed"

    def _final_status(self) -> str:
        return "incomplete" if self._reply.choices[0].finish_reason == "length" else "completed"

    def _logprobs(self, entries: Sequence[TokenEntry]) -> list[Any]:
        made = chat_logprobs(entries, self._table)
        return [] if made is None else list(made.content)

    def _response(self, status: str) -> dict[str, Any]:
        done = status != "in_progress"
        body = self._body
        return {
            "id": self._reply.id,
            "object": "response",
            "created_at": self._reply.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": self._model,
            "output": [self._item(block) for block in self._blocks.blocks] if done else [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "temperature": self._sampling.temperature,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": self._sampling.top_p,
            "truncation": body.get("truncation") or "disabled",
            "usage": self._usage() if done else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = usage_of(self._reply.choices)
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}
