"""The tools of a request, and which of them the model may, must or cannot call."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.fields import ARRAY, BOOLEAN, OBJECT, STRING

_MAX_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# A function without parameters, as templates see it and as the grammar does.
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_NO_ARGUMENTS = {**_NO_PARAMETERS, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` as the client listed them; `forced` names those of which one must be called, none when it may be."""

    tools: list[dict[str, Any]]
    forced: tuple[str, ...]
    parallel: bool

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Name -> JSON schema of the arguments, in the client's order."""
        functions = [tool["function"] for tool in self.tools]
        given = {one["name"]: one["parameters"] for one in functions}
        return {name: _NO_ARGUMENTS if one is _NO_PARAMETERS else one for name, one in given.items()}


def read_tools(body: Mapping[str, Any]) -> ToolUse | None:
    """The fields tools, tool_choice and parallel_tool_calls; None when nothing is to be called. Raises RequestError."""
    values = fields.read(body, {"tools": ARRAY, "parallel_tool_calls": BOOLEAN})
    listed = values.get("tools", [])
    if len(listed) > _MAX_TOOLS:
        message = f"tools has {len(listed)} entries; at most {_MAX_TOOLS} are taken"
        raise RequestError(message, param="tools", code="invalid_value")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed)]
    names = [tool["function"]["name"] for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"tools has two functions called {twice}", param="tools", code="invalid_value")
    choice = _choice(body.get("tool_choice"), names)
    if not tools or choice == "none":
        return None
    forced = tuple(names) if choice == "required" else () if choice == "auto" else (choice.partition(":")[2],)
    return ToolUse(tools, forced, values.get("parallel_tool_calls", True))


def _tool(tool: Any, path: str) -> dict[str, Any]:
    fields.check(tool, OBJECT, path)
    kind = tool.get("type", "function")
    fields.check(kind, fields.OneOf(("function",)), f"{path}.type")
    function = fields.required(tool, "function", OBJECT, f"{path}.function")
    name = fields.required(function, "name", STRING, f"{path}.function.name")
    if not _NAME.fullmatch(name):
        message = f"{path}.function.name must be 1 to 128 letters, digits, or _ - . : /, not {fields.shown(name)}"
        raise RequestError(message, param=f"{path}.function.name", code="invalid_value")
    for field, kind_of in (("description", STRING), ("parameters", OBJECT), ("strict", BOOLEAN)):
        if function.get(field) is not None:
            fields.check(function[field], kind_of, f"{path}.function.{field}")
    # Templates index into these without asking whether they are there.
    complete = {"description": "", "parameters": _NO_PARAMETERS}
    given = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": {"name": name} | complete | given}


def _choice(value: Any, names: list[str]) -> str:
    """none, auto, required, or `name:` and the name."""
    if value is None:
        return "auto"
    if not isinstance(value, dict):
        fields.check(value, fields.OneOf(("none", "auto", "required")), "tool_choice")
        if value == "required" and not names:
            message = "tool_choice is required, but there are no tools to call"
            raise RequestError(message, param="tool_choice", code="invalid_value")
        return str(value)
    fields.check(value.get("type"), fields.OneOf(("function",)), "tool_choice.type")
    function = fields.required(value, "function", OBJECT, "tool_choice.function")
    name = fields.required(function, "name", STRING, "tool_choice.function.name")
    if name not in names:
        message = f"tool_choice names {fields.shown(name)}, which is not among the tools"
        raise RequestError(message, param="tool_choice.function.name", code="invalid_value")
    return f"name:{name}"
