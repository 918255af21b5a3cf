"""Tools, calls and results in the messages of a prompt, for templates that know less than all of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.formats import ToolFormat

Message = dict[str, Any]


def with_tool_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[Message]:
    """`messages` whose system text lists `tools` and says how to call them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = form.written([ToolCall("function-name", '{"argument": "value"}')])
    text = (
        "You can call these functions, each described by a JSON object:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call one, write its name and arguments as a JSON object between tags, and nothing after it:\n"
        f"{example}\n"
        "The result is given to you between <tool_response> tags. Answer without a call when none is needed."
    )
    if messages and messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}".strip()}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_written_calls(messages: Sequence[Message], form: ToolFormat, *, calls: bool, results: bool) -> list[Message]:
    """`messages` in which `calls` are text of the assistant's and `results` are the user's.

    Results that stand together become one message.
    """
    made: list[Message] = []
    for message in messages:
        if calls and message.get("tool_calls"):
            made.append(_written(message, form))
        elif results and message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if made and made[-1].get("is_result"):
                made[-1]["content"] += f"\n{text}"
            else:
                made.append({"role": "user", "content": text, "is_result": True})
        else:
            made.append(dict(message))
    return [{key: value for key, value in message.items() if key != "is_result"} for message in made]


def _written(message: Message, form: ToolFormat) -> Message:
    calls = [
        ToolCall(call["function"]["name"], _json_text(call["function"]["arguments"])) for call in message["tool_calls"]
    ]
    content = "\n".join(text for text in (message["content"], form.written(calls)) if text)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
