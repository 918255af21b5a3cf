"""Calls that are read when they are complete: LFM2's Python-style list and Gemma's shorthand."""

import json
from collections.abc import Sequence

import msgspec

from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.json_call import JsonCall
from npuserve.text.tools.literal import LiteralError, LiteralReader


def python_calls(text: str) -> Sequence[ToolCall] | None:
    """`[f(a=1, b="x"), g()]`, also without the brackets; or a list of JSON objects. None for anything else."""
    reader = LiteralReader(text)
    try:
        bracketed = reader.take("[")
        calls = [_one(reader)]
        while reader.take(","):
            calls.append(_one(reader))
        if bracketed:
            reader.expect("]")
        return calls if reader.skip_space() == "" else None
    except LiteralError:
        return None


def python_text(calls: Sequence[ToolCall]) -> str:
    """`calls` as `python_calls` reads them; one whose arguments are no object, or have odd names, stays JSON."""
    return f"[{', '.join(map(_python_call, calls))}]"


def _python_call(call: ToolCall) -> str:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not all(name.isidentifier() for name in arguments):
        return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _one(reader: LiteralReader) -> ToolCall:
    if reader.skip_space() == "{":
        return _json(reader)
    name = reader.word()
    if reader.skip_space() != "(":
        raise LiteralError
    return ToolCall(name, reader.members("=", ")"))


def _json(reader: LiteralReader) -> ToolCall:
    call = JsonCall()
    num_read = call.feed(reader.text[reader.at :])
    if call.name is None or not call.ended:
        raise LiteralError
    reader.at += num_read
    return ToolCall(call.name, call.take_arguments())


def gemma_calls(delimiter: str, text: str) -> Sequence[ToolCall] | None:
    """`call:f{a:1,b:<escape>x<escape>}` with strings between `delimiter` or in quotes; None for anything else."""
    reader = LiteralReader(text, delimiter=delimiter)
    try:
        calls: list[ToolCall] = []
        reader.expect("call:")
        while not calls or reader.take("call:"):
            name = reader.word()
            if reader.skip_space() != "{":
                return None
            start = reader.at
            arguments = reader.members(":", "}")
            calls.append(ToolCall(name, _verbatim(text[start : reader.at]) or arguments))
        return calls if reader.skip_space() == "" else None
    except LiteralError:
        return None


def _verbatim(text: str) -> str | None:
    """`text` itself when it is JSON already."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return text
