"""Tool calls through the official client, in the format of each family."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import openai
import pytest

from live_server import Script, null_state, serving
from npuserve.text.chat_template import ChatTemplate

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 10},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, TIME]

# Just enough of a template to show what reached it, and the words that give a family's format away.
TEMPLATE = """\
{%- if tools %}TOOLS {{ tools | tojson }}
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %} CALLED {{ call.function.name }} {{ call.function.arguments.city }}
{%- endfor -%}
{%- if message.role == 'tool' %} RESULT OF {{ message.tool_call_id }}{% endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}{# MARK #}"""
MARKS = {
    "hermes": "<tool_call>",
    "qwen": "<function=",
    "llama": "<|python_tag|>",
    "lfm2": "<|tool_list_start|>",
    "gemma": "<|tool_call>",
    "functiongemma": "<start_function_call>",
}
ARGUMENTS = '{"city": "Zürich \\"東\\"", "days": 2}'
ONE = {
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "llama": f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}',
    "lfm2": "<|tool_call_start|>[get_weather(city='Zürich \"東\"', days=2)]<|tool_call_end|>",
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Zürich "東"<|"|>,days:2}<tool_call|>',
    "functiongemma": (
        '<start_function_call>call:get_weather{city:<escape>Zürich "東"<escape>,days:2}<end_function_call>'
    ),
}
ONE["qwen"] = (
    '<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "東"\n</parameter>\n'
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
TWO = {
    "qwen": ONE["qwen"] + "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama": ONE["llama"] + '; {"name": "now", "parameters": {}}',
    "lfm2": ONE["lfm2"].replace(")]", "), now()]"),
    "gemma": ONE["gemma"] + "<|tool_call>call:now{}<tool_call|>",
    "functiongemma": ONE["functiongemma"] + "<start_function_call>call:now{}<end_function_call>",
}
FAMILIES = list(MARKS)


@contextmanager
def talking(reply: str, *, template: str | None = None, **options: Any) -> Iterator[openai.OpenAI]:
    """A client of a server whose model always says `reply`."""
    with (
        serving(null_state(Script({"": reply}), template=template, context_length=2048, **options)) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def of_family(family: str) -> str:
    return TEMPLATE.replace("MARK", MARKS[family])


def ask(client: openai.OpenAI, **options: Any) -> Any:
    options = {"messages": [{"role": "user", "content": "Is it warm?"}], "tools": TOOLS, **options}
    return client.chat.completions.create(model="tiny", **options)


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


@pytest.mark.parametrize("family", FAMILIES)
def test_call_is_parsed(family: str) -> None:
    with talking(ONE[family], template=of_family(family)) as client:
        choice = ask(client).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert calls_of(choice.message) == [("get_weather", ARGUMENTS)]
    assert choice.message.tool_calls[0].type == "function"
    assert choice.message.tool_calls[0].id.startswith("call_")


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_call_gives_its_name_first_and_then_its_arguments(family: str) -> None:
    with talking(TWO[family], template=of_family(family)) as client:
        chunks = list(ask(client, stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    for index, (name, arguments) in enumerate([("get_weather", ARGUMENTS), ("now", "{}")]):
        own = [delta for delta in deltas if delta.index == index]
        assert (own[0].function.name, own[0].type, own[0].function.arguments) == (name, "function", "")
        assert own[0].id
        assert all(delta.id is None and delta.function.name is None for delta in own[1:])
        assert "".join(delta.function.arguments for delta in own) == arguments


@pytest.mark.parametrize("family", FAMILIES)
def test_only_one_call_without_parallel_ones(family: str) -> None:
    with talking(TWO[family], template=of_family(family)) as client:
        choice = ask(client, parallel_tool_calls=False).choices[0]
    assert calls_of(choice.message) == [("get_weather", ARGUMENTS)]
    assert choice.finish_reason == "tool_calls"


def test_text_before_a_call_is_content() -> None:
    with talking("Let me see.\n\n" + ONE["hermes"]) as client:
        choice = ask(client).choices[0]
    assert choice.message.content == "Let me see."
    assert len(choice.message.tool_calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"nome": "get_weather"}\n</tool_call>',
        "<tool_call> is a tag",
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        "no call at all {",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    with talking(text) as client:
        choice = ask(client).choices[0]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True))
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
    assert streamed == text


def test_call_cut_by_length_is_length() -> None:
    with talking(ONE["hermes"]) as client:
        whole = ask(client)
        cut = ask(client, max_tokens=whole.usage.completion_tokens - 25).choices[0]
    assert cut.finish_reason == "length"
    ((name, arguments),) = calls_of(cut.message)
    assert name == "get_weather"
    assert ARGUMENTS.startswith(arguments)
    assert arguments != ARGUMENTS


def test_tools_that_may_not_be_called_are_not_shown_nor_parsed() -> None:
    with talking(ONE["hermes"]) as client:
        choice = ask(client, tool_choice="none").choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content == ONE["hermes"]


def rendered(monkeypatch: pytest.MonkeyPatch, template: str | None, **options: Any) -> str:
    prompts: list[str] = []
    render = ChatTemplate.render

    def noted(self: ChatTemplate, *args: Any, **kwargs: Any) -> str:
        prompts.append(render(self, *args, **kwargs))
        return prompts[-1]

    monkeypatch.setattr(ChatTemplate, "render", noted)
    with talking("ok", template=template) as client:
        ask(client, **options)
    return prompts[-1]


def test_tools_reach_a_template_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = rendered(monkeypatch, TEMPLATE)
    assert '"name": "get_weather", "description": "The weather of a place"' in prompt
    assert prompt.startswith("TOOLS [")


def test_tools_become_system_text_for_a_template_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it warm?"}]
    prompt = rendered(monkeypatch, None, messages=messages)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call")
    assert '<tools>\n{"type": "function", "function": {"name": "get_weather"' in prompt
    assert "<tool_call>\n" in prompt


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Is it warm?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
]


def test_earlier_calls_reach_a_template_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = rendered(monkeypatch, TEMPLATE, messages=HISTORY)
    assert "CALLED get_weather Rome CALLED now" in prompt
    assert "warm RESULT OF c1" in prompt


def test_earlier_calls_are_written_out_for_a_template_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = rendered(monkeypatch, None, messages=HISTORY)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome"}}\n</tool_call>' in prompt
    assert (
        "<|im_start|>user\n<tool_response>\nwarm\n</tool_response>\n<tool_response>\nnoon\n</tool_response>" in prompt
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_named_function_is_enforced_with_valid_arguments(family: str, temperature: float) -> None:
    state = null_state(Script({"": "I would rather talk."}), template=of_family(family), context_length=2048)
    with serving(state) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        named = {"type": "function", "function": {"name": "get_weather"}}
        choice = ask(client, tool_choice=named, temperature=temperature, seed=3).choices[0]
    assert choice.finish_reason == "tool_calls"
    ((name, arguments),) = calls_of(choice.message)
    assert name == "get_weather"
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


@pytest.mark.parametrize("family", FAMILIES)
def test_required_makes_a_call_of_some_tool(family: str) -> None:
    state = null_state(template=of_family(family), context_length=2048)  # says random things
    with serving(state) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        choice = ask(client, tool_choice="required", parallel_tool_calls=False, max_tokens=400).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    ((name, arguments),) = calls_of(choice.message)
    schemas = {"get_weather": WEATHER["function"]["parameters"], "now": {"type": "object"}}
    jsonschema.validate(json.loads(arguments), schemas[name])


def test_schema_that_cannot_be_enforced_is_refused_only_when_a_call_is_required() -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    with talking("fine") as client:
        assert ask(client, tools=[odd]).choices[0].message.content == "fine"
        with pytest.raises(openai.BadRequestError, match="not, which cannot be enforced"):
            ask(client, tools=[odd], tool_choice="required")
        with pytest.raises(openai.BadRequestError, match="cannot be enforced on a reply that may call tools"):
            ask(client, response_format={"type": "json_object"})


def test_each_choice_has_its_own_calls() -> None:
    with talking(ONE["hermes"]) as client:
        reply = ask(client, n=3)
    ids = [choice.message.tool_calls[0].id for choice in reply.choices]
    assert len(set(ids)) == 3


def test_control_tags_of_a_family_reach_the_parser_though_they_are_special_tokens() -> None:
    state = null_state(Script({}), template=of_family("lfm2"), context_length=2048)
    assert state.model.tool_format.name == "lfm2"
    assert "<|tool_call_start|>" in state.model.tool_format.tags


def test_calls_go_through_the_whole_conversation() -> None:
    answers: dict[str, str | list[int]] = {"warm and sunny": "It is warm.", "Is it warm?": ONE["hermes"]}
    state = null_state(Script(answers), context_length=2048)
    with serving(state) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        messages: list[Any] = [{"role": "user", "content": "Is it warm?"}]
        first = ask(client, messages=messages).choices[0].message
        messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "warm and sunny"}]
        assert ask(client, messages=messages).choices[0].message.content == "It is warm."
