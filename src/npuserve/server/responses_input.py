"""A request of OpenAI's Responses API as the chat request that says the same."""

import re
from collections.abc import Mapping
from typing import Any

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.fields import ARRAY, BOOLEAN, OBJECT, STRING, Integer, Kind
from npuserve.server.messages import MAX_MESSAGES
from npuserve.server.sampling import FIELDS

RESPONSES_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "instructions": STRING,
    "max_output_tokens": Integer(1),
    "temperature": FIELDS["temperature"],
    "top_p": FIELDS["top_p"],
    "stream": BOOLEAN,
    "store": BOOLEAN,
    "background": BOOLEAN,
    "previous_response_id": STRING,
    "conversation": OBJECT,
    "parallel_tool_calls": BOOLEAN,
    "tools": ARRAY,
    "text": OBJECT,
    "reasoning": OBJECT,
    "metadata": OBJECT,
    "truncation": fields.OneOf(("auto", "disabled")),
    "top_logprobs": Integer(0, 20),
    "include": ARRAY,
}
_WANTS_LOGPROBS = "message.output_text.logprobs"
# Fields that mean the same in a chat request.
_SAME = ("temperature", "top_p", "stream", "parallel_tool_calls", "chat_template_kwargs", "enable_thinking", "stop")
_EXTRA = tuple(name for name in FIELDS if name not in ("n", "best_of", "stream_options", *_SAME))


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request. Raises RequestError, also for what would need the server to remember earlier responses."""
    values = fields.read(body, RESPONSES_FIELDS)
    _refuse_state(values)
    chat: dict[str, Any] = {name: body[name] for name in (*_SAME, *_EXTRA) if body.get(name) is not None}
    chat["messages"] = _Items(body).messages
    if "max_output_tokens" in values:
        chat["max_tokens"] = values["max_output_tokens"]
    if values.get("tools"):
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(values["tools"])]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if "text" in values and values["text"].get("format") is not None:
        chat["response_format"] = _response_format(values["text"]["format"])
    if values.get("reasoning", {}).get("effort") is not None:
        chat["reasoning_effort"] = values["reasoning"]["effort"]
    if _WANTS_LOGPROBS in values.get("include", ()):
        chat["logprobs"] = True
        chat["top_logprobs"] = values.get("top_logprobs", 0)
    return chat


def told_in_own_names(error: RequestError, body: Mapping[str, Any]) -> RequestError:
    """`error` over a chat request with the field's name in the Responses request that it was made from."""
    names = {
        "response_format": "text.format",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
    }
    param = error.param
    if param is None:
        return error
    found = re.match(r"messages\[(\d+)\]", param)
    own = next((param.replace(name, mine, 1) for name, mine in names.items() if param.startswith(name)), param)
    if found:
        paths = _Items(body).paths
        number = int(found[1])
        own = (paths[number] if number < len(paths) else "input") + param[found.end() :]
    elif param == "messages":
        own = "input"
    return RequestError(str(error).replace(param, own, 1), param=own, code=error.code)


def _refuse_state(values: Mapping[str, Any]) -> None:
    if values.get("store", False):
        message = "store is true, but this server keeps no responses; set it to false and send the whole conversation"
        raise RequestError(message, param="store", code="unsupported")
    if values.get("background", False):
        raise UnbuiltFieldError("background")
    for name in ("previous_response_id", "conversation"):
        if name in values:
            message = f"{name} is given, but this server keeps no responses; send the whole conversation as input"
            raise RequestError(message, param=name, code="unsupported")


class _Items:
    """The messages that `instructions` and `input` make, and the path that each came from."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._reasoning = ""
        instructions = body.get("instructions")
        if instructions:
            self._add({"role": "system", "content": instructions}, "instructions")
        given = body.get("input")
        if isinstance(given, str):
            self._add({"role": "user", "content": given}, "input")
            return
        items = fields.required(body, "input", fields.OfType(list, "a string or a list of items"))
        if not items or len(items) > MAX_MESSAGES:
            message = f"input has {len(items)} items; it must have 1 to {MAX_MESSAGES}"
            raise RequestError(message, param="input", code="invalid_value")
        for index, item in enumerate(items):
            self._take(item, f"input[{index}]")

    def _take(self, item: Any, path: str) -> None:
        fields.check(item, OBJECT, path)
        kind = item.get("type") or "message"
        match kind:
            case "message":
                message = {"role": item.get("role"), "content": item.get("content")}
                if message["role"] == "assistant" and self._reasoning:
                    message["reasoning_content"], self._reasoning = self._reasoning, ""
                self._add(message, path)
            case "function_call":
                self._take_call(item, path)
            case "function_call_output":
                call_id = fields.required(item, "call_id", STRING, f"{path}.call_id")
                self._add({"role": "tool", "tool_call_id": call_id, "content": item.get("output")}, path)
            case "reasoning":
                self._reasoning += _thoughts(item)
            case _:
                fields.check(kind, STRING, f"{path}.type")
                raise UnbuiltFieldError(path, f"{path} of type {kind[:40]}")

    def _take_call(self, item: Mapping[str, Any], path: str) -> None:
        function = {
            "name": fields.required(item, "name", STRING, f"{path}.name"),
            "arguments": fields.required(item, "arguments", STRING, f"{path}.arguments"),
        }
        call_id = fields.required(item, "call_id", STRING, f"{path}.call_id")
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": None}, path)
            if self._reasoning:
                self.messages[-1]["reasoning_content"], self._reasoning = self._reasoning, ""
        self.messages[-1].setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _add(self, message: dict[str, Any], path: str) -> None:
        self.messages.append(message)
        self.paths.append(path)


def _thoughts(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def _tool(tool: Any, path: str) -> dict[str, Any]:
    fields.check(tool, OBJECT, path)
    kind = fields.required(tool, "type", STRING, f"{path}.type")
    if kind != "function":
        raise UnbuiltFieldError(path, f"{path} of type {kind[:40]}")
    fields.required(tool, "name", STRING, f"{path}.name")
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    fields.check(choice.get("type"), fields.OneOf(("function",)), "tool_choice.type")
    return {"type": "function", "function": {"name": fields.required(choice, "name", STRING, "tool_choice.name")}}


def _response_format(format_: Any) -> dict[str, Any]:
    fields.check(format_, OBJECT, "text.format")
    kind = fields.required(format_, "type", fields.OneOf(("text", "json_object", "json_schema")), "text.format.type")
    if kind != "json_schema":
        return {"type": kind}
    schema = fields.required(format_, "schema", OBJECT, "text.format.schema")
    return {"type": kind, "json_schema": {"name": format_.get("name", ""), "schema": schema}}
