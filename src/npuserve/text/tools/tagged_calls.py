"""Calls whose function and arguments stand in tags of their own, as Qwen3-Coder and Qwen3.5 write them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.json_call import JsonCall

# Name of a function -> JSON schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def tagged_calls(schemas: Schemas, text: str) -> Sequence[ToolCall] | None:
    """`<function=f><parameter=a>1</parameter></function>`, or a JSON object; None for anything else.

    A value is text where the schema says so or says nothing, else JSON when it is that.
    """
    text = text.strip()
    if text.startswith("{"):
        call = JsonCall()
        num_read = call.feed(text)
        return [ToolCall(call.name, call.take_arguments())] if call.name is not None and num_read == len(text) else None
    if not (text.startswith(_FUNCTION) and text.endswith(_FUNCTION_END)):
        return None
    name, closed, inside = text.removeprefix(_FUNCTION).removesuffix(_FUNCTION_END).partition(">")
    if not name or not closed:
        return None
    properties = schemas.get(name, {}).get("properties")
    arguments = _parameters(inside, properties if isinstance(properties, dict) else {})
    return None if arguments is None else [ToolCall(name, arguments)]


def _parameters(text: str, properties: Mapping[str, Any]) -> str | None:
    """JSON text of the arguments between the tags."""
    parts: list[str] = []
    at = 0
    while (start := text.find(_PARAMETER, at)) >= 0:
        end = text.find(_PARAMETER_END, start)
        if end < 0 or text[at:start].strip():
            return None
        name, closed, value = text[start + len(_PARAMETER) : end].partition(">")
        if not name or not closed:
            return None
        value = value.removeprefix("\n").removesuffix("\n")
        parts.append(f"{json.dumps(name, ensure_ascii=False)}: {_json_text(value, properties.get(name))}")
        at = end + len(_PARAMETER_END)
    return None if text[at:].strip() else "{" + ", ".join(parts) + "}"


def _json_text(value: str, schema: Any) -> str:
    kinds = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if kinds != "string" and not (isinstance(kinds, list) and "string" in kinds):
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            return value.strip()
    return json.dumps(value, ensure_ascii=False)
