"""One turn of a chat, whatever API asked for it: from messages and tools to choices ready to run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from npuserve.errors import RequestError
from npuserve.server.generation import Features, encoded, make_choices
from npuserve.server.reply import Choice
from npuserve.server.sampling import Generation
from npuserve.server.state import ServedModel
from npuserve.server.tools import ToolUse
from npuserve.text.grammar import Grammar, calls_grammar
from npuserve.text.reasoning import OPEN_TAG
from npuserve.text.shield import Shield
from npuserve.text.tools.prompt import Message, with_tool_text, with_written_calls


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What the model is asked. `messages` are as `read_messages` makes them, `switches` as `read_switches`."""

    messages: list[Message]
    switches: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolUse | None = None
    grammar: Grammar | None = None
    num_logprobs: int | None = None
    splits_reasoning: bool = True


async def chat_choices(model: ServedModel, generation: Generation, turn: ChatTurn) -> list[Choice]:
    """The choices of a turn, `generation.num_choices` of them. Raises RequestError."""
    opened = False

    def encode() -> list[int]:
        nonlocal opened
        rendered, shield = _render(model, turn)
        opened = rendered.rstrip().endswith(OPEN_TAG)
        return model.tokenizer.encode_rendered(rendered, shield)

    size = sum(len(message["content"]) for message in turn.messages)
    if turn.tools is not None:
        size += len(msgspec.json.encode(turn.tools.tools))
    prompt_ids = await encoded(model, size, encode)
    splits = model.splits_reasoning and turn.splits_reasoning
    features = Features(
        num_logprobs=turn.num_logprobs,
        grammar=_grammar_of(model, turn),
        tools=turn.tools,
        splits_reasoning=splits,
        reasoning_is_open=splits and opened,
        may_reason=splits and bool(turn.switches.get("enable_thinking", False)),
    )
    return await make_choices(model, generation, prompt_ids, features, chat=True)


def _grammar_of(model: ServedModel, turn: ChatTurn) -> Grammar | None:
    """The calls that must be made, or what the text must be. Raises RequestError where calls may be made as well."""
    tools = turn.tools
    if tools is None:
        return turn.grammar
    if tools.forced:
        schemas = {name: schema for name, schema in tools.schemas.items() if name in tools.forced}
        return calls_grammar(
            model.tool_format,
            schemas,
            parallel=tools.parallel and len(tools.forced) > 1,
            param="tool_choice",
        )
    if turn.grammar is not None:
        message = f"{turn.grammar.param} cannot be enforced on a reply that may call tools"
        raise RequestError(
            f"{message}; set tool_choice to none or required", param=turn.grammar.param, code="unsupported"
        )
    return None


def _render(model: ServedModel, turn: ChatTurn) -> tuple[str, Shield]:
    """The prompt's text, its client strings shielded."""
    template, form = model.template, model.tool_format
    shield = model.tokenizer.shield()
    messages = shield.hide(turn.messages)
    tools = None if turn.tools is None else shield.hide(turn.tools.tools)
    # Tags that we write here must stay tags, so it is done to messages that are shielded already.
    if not template.writes_calls or not template.takes_results:
        messages = with_written_calls(
            messages, form, calls=not template.writes_calls, results=not template.takes_results
        )
    if tools is not None and not template.takes_tools:
        messages, tools = with_tool_text(messages, tools, form), None
    messages = [_with_objects(message) if message.get("tool_calls") else message for message in messages]
    return template.render(messages, tools=tools, switches=shield.hide(dict(turn.switches))), shield


def _with_objects(message: Message) -> Message:
    """Arguments as objects, which templates print their own way; text that is no object stays text."""
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append({**call, "function": {**function, "arguments": _object(function["arguments"])}})
    return {**message, "tool_calls": calls}


def _object(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
