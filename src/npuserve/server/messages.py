"""Chat messages: checked, and made into what templates expect."""

import json
from collections.abc import Mapping
from typing import Any

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.fields import ARRAY, OBJECT, STRING

MAX_MESSAGES = 4096
MAX_PARTS = 1024
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_UNBUILT_PARTS = frozenset({"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file"})
_PASSED_ON = ("name", "tool_call_id", "reasoning_content")


def read_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages with string contents, one or more. Raises RequestError whose param is the path of the fault."""
    messages = fields.required(body, "messages", ARRAY)
    if not messages:
        raise RequestError("messages is empty; at least one is needed", param="messages", code="invalid_value")
    if len(messages) > MAX_MESSAGES:
        message = f"messages has {len(messages)} entries; at most {MAX_MESSAGES} are taken"
        raise RequestError(message, param="messages", code="invalid_value")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, path: str) -> dict[str, Any]:
    fields.check(message, OBJECT, path)
    role = fields.required(message, "role", STRING, f"{path}.role")
    fields.check(role, fields.OneOf(_ROLES), f"{path}.role")
    made = {"role": "system" if role == "developer" else role, "content": _content(message, role, f"{path}.content")}
    calls = message.get("tool_calls")
    if calls is not None:
        fields.check(calls, ARRAY, f"{path}.tool_calls")
        if calls and role != "assistant":
            text = f"{path}.tool_calls: a {role} message makes no calls"
            raise RequestError(text, param=f"{path}.tool_calls", code="invalid_value")
        if calls:
            made["tool_calls"] = [_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)]
    for name in _PASSED_ON:
        value = message.get(name)
        if value is not None:
            fields.check(value, STRING, f"{path}.{name}")
            made[name] = value
    return made


def _call(call: Any, path: str) -> dict[str, Any]:
    """An earlier call; its arguments are text here, whatever the client sent."""
    fields.check(call, OBJECT, path)
    fields.check(call.get("type", "function"), fields.OneOf(("function",)), f"{path}.type")
    function = fields.required(call, "function", OBJECT, f"{path}.function")
    name = fields.required(function, "name", STRING, f"{path}.function.name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = "{}"
    elif isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    fields.check(arguments, STRING, f"{path}.function.arguments")
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        fields.check(call["id"], STRING, f"{path}.id")
        made["id"] = call["id"]
    return made


def _content(message: Mapping[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    match content:
        case str():
            return content
        case list() if len(content) > MAX_PARTS:
            text = f"{path} has {len(content)} parts; at most {MAX_PARTS} are taken"
            raise RequestError(text, param=path, code="invalid_value")
        case list():
            return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))
        case None if role == "assistant":
            return ""
        case None:
            raise RequestError(f"{path} is missing; a {role} message needs it", param=path, code="missing_field")
        case _:
            message_text = f"{path} must be a string or a list of parts, not {fields.shown(content)}"
            raise RequestError(message_text, param=path, code="invalid_value")


def _part(part: Any, path: str) -> str:
    fields.check(part, OBJECT, path)
    kind = fields.required(part, "type", STRING, f"{path}.type")
    if kind in _UNBUILT_PARTS:
        param = f"{path}.{kind}" if kind in part else path
        raise UnbuiltFieldError(param, f"{path} of type {kind}")
    fields.check(kind, fields.OneOf(tuple(_TEXT_PARTS)), f"{path}.type")
    name = _TEXT_PARTS[kind]
    return str(fields.required(part, name, STRING, f"{path}.{name}"))
