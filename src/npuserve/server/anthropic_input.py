"""A request of Anthropic's Messages API as the chat request that says the same."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.fields import ARRAY, BOOLEAN, OBJECT, STRING, Integer, Kind, OneOf
from npuserve.server.messages import MAX_MESSAGES, MAX_PARTS
from npuserve.server.sampling import FIELDS

MESSAGES_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "max_tokens": Integer(1),
    "temperature": FIELDS["temperature"],
    "top_p": FIELDS["top_p"],
    "top_k": FIELDS["top_k"],
    "stream": BOOLEAN,
    "stop_sequences": ARRAY,
    "tools": ARRAY,
    "tool_choice": OBJECT,
    "thinking": OBJECT,
    "metadata": OBJECT,
}
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream", "seed", "min_p", "chat_template_kwargs", "cache_salt")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TEXT_OR_BLOCKS = fields.OfType(list, "a string or a list of content blocks")


def chat_body(body: Mapping[str, Any], *, counting: bool = False) -> dict[str, Any]:
    """The chat request; `counting` needs no max_tokens. Raises RequestError."""
    values = fields.read(body, MESSAGES_FIELDS)
    if not counting:
        fields.required(body, "max_tokens", Integer(1))
    chat: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["messages"] = _messages(body)
    stops = values.get("stop_sequences")
    if stops:
        chat["stop"] = stops
    if values.get("tools"):
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(values["tools"])]
    choice = values.get("tool_choice")
    if choice is not None:
        chat |= _tool_choice(choice)
    thinking = values.get("thinking")
    if thinking is not None:
        kind = fields.required(thinking, "type", OneOf(("enabled", "adaptive", "disabled")), "thinking.type")
        chat["enable_thinking"] = kind != "disabled"
    return chat


def told_in_own_names(error: RequestError) -> RequestError:
    """`error` over a chat request with the names of the Messages request: `stop` is stop_sequences there."""
    if error.param is None or not re.match(r"stop\b", error.param):
        return error
    param = error.param.replace("stop", "stop_sequences", 1)
    return RequestError(str(error).replace("stop", "stop_sequences", 1), param=param, code=error.code)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    system = body.get("system")
    if system is not None:
        made.append({"role": "system", "content": _text(system, "system")})
    messages = fields.required(body, "messages", ARRAY)
    if not messages or len(messages) > MAX_MESSAGES:
        message = f"messages has {len(messages)} entries; it must have 1 to {MAX_MESSAGES}"
        raise RequestError(message, param="messages", code="invalid_value")
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        fields.check(message, OBJECT, path)
        role = fields.required(message, "role", OneOf(("user", "assistant", "system")), f"{path}.role")
        content = message.get("content")
        if isinstance(content, str):
            made.append({"role": role, "content": content})
            continue
        blocks = fields.required(message, "content", _TEXT_OR_BLOCKS, f"{path}.content")
        if len(blocks) > MAX_PARTS:
            text = f"{path}.content has {len(blocks)} blocks; at most {MAX_PARTS} are taken"
            raise RequestError(text, param=f"{path}.content", code="invalid_value")
        made += _from_blocks(role, blocks, f"{path}.content")
    return made


def _from_blocks(role: str, blocks: list[Any], path: str) -> list[dict[str, Any]]:
    """The messages of one of Anthropic's: a tool's result is a message of its own in a chat."""
    made: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        fields.check(block, OBJECT, where)
        kind = fields.required(block, "type", STRING, f"{where}.type")
        match kind:
            case "text":
                texts.append(fields.required(block, "text", STRING, f"{where}.text"))
            case "thinking":
                thoughts.append(fields.required(block, "thinking", STRING, f"{where}.thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block, where))
            case "tool_result":
                call_id = fields.required(block, "tool_use_id", STRING, f"{where}.tool_use_id")
                content = _text(block.get("content") or "", f"{where}.content")
                made.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case _:
                raise UnbuiltFieldError(where, f"{where} of type {kind[:40]}")
    if texts or calls or thoughts or not made:
        message: dict[str, Any] = {"role": role, "content": "".join(texts)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        made.append(message)
    return made


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = fields.required(block, "name", STRING, f"{path}.name")
    arguments = fields.required(block, "input", OBJECT, f"{path}.input")
    call_id = fields.required(block, "id", STRING, f"{path}.id")
    function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
    return {"id": call_id, "type": "function", "function": function}


def _text(value: Any, path: str) -> str:
    """Text, or text blocks joined."""
    if isinstance(value, str):
        return value
    fields.check(value, _TEXT_OR_BLOCKS, path)
    texts = []
    for index, block in enumerate(value):
        where = f"{path}[{index}]"
        fields.check(block, OBJECT, where)
        kind = fields.required(block, "type", STRING, f"{where}.type")
        if kind != "text":
            raise UnbuiltFieldError(where, f"{where} of type {kind[:40]}")
        texts.append(fields.required(block, "text", STRING, f"{where}.text"))
    return "".join(texts)


def _tool(tool: Any, path: str) -> dict[str, Any]:
    fields.check(tool, OBJECT, path)
    kind = tool.get("type") or "custom"
    if kind != "custom":
        fields.check(kind, STRING, f"{path}.type")
        raise UnbuiltFieldError(path, f"{path} of type {kind[:40]}")
    function = {
        "name": fields.required(tool, "name", STRING, f"{path}.name"),
        "description": tool.get("description"),
        "parameters": fields.required(tool, "input_schema", OBJECT, f"{path}.input_schema"),
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = fields.required(choice, "type", OneOf((*_CHOICES, "tool")), "tool_choice.type")
    made: dict[str, Any] = {}
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None:
        fields.check(alone, BOOLEAN, "tool_choice.disable_parallel_tool_use")
        made["parallel_tool_calls"] = not alone
    if kind == "tool":
        name = fields.required(choice, "name", STRING, "tool_choice.name")
        return {**made, "tool_choice": {"type": "function", "function": {"name": name}}}
    return {**made, "tool_choice": _CHOICES[kind]}
