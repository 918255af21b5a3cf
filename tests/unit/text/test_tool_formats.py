import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.formats import FORMATS, FUNCTION_GEMMA, GEMMA, HERMES, LFM2, LLAMA, QWEN, ToolFormat, format_of
from npuserve.text.tools.literal import LiteralError, LiteralReader
from npuserve.text.tools.written_calls import gemma_calls, python_calls

NAMES: dict[str, dict[str, Any]] = {"f": {"properties": {"n": {"type": "integer"}, "o": {"type": "object"}}}, "g": {}}


def parsed(form: ToolFormat, text: str, size: int = 1) -> tuple[str, list[tuple[str, str]]]:
    parser = form.parser(NAMES, parallel=True)
    shown: list[str] = []
    calls: list[list[str]] = []
    for at in range(0, len(text), size):
        visible, deltas = parser.push(text[at : at + size])
        shown.append(visible)
        for delta in deltas:
            if delta.name is not None:
                calls.append([delta.name, ""])
            calls[delta.number][1] += delta.arguments
    shown.append(parser.finish())
    return "".join(shown), [(name, arguments) for name, arguments in calls]


CASES: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, 'Hi\n<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>\n', "Hi", [("f", '{"a": "}"}')]),
    (HERMES, '<tool_call>{"arguments": {"q":1}, "name":"f"}</tool_call>tail', "tail", [("f", '{"q":1}')]),
    (HERMES, '<tool_call>{"name":"f"}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', "", [("f", '{"a":1}')]),
    (HERMES, '<tool_call>{"name":"f","arguments":{}} extra', "extra", [("f", "{}")]),
    (HERMES, '<tool_call>{"name":"f","arguments":{"a":1</tool_call> x', " x", [("f", '{"a":1')]),
    (HERMES, '<tool_call>{"name":"f","arg', '<tool_call>{"name":"f","arg', []),
    (HERMES, '<tool_call>{"other":1}</tool_call>', '<tool_call>{"other":1}</tool_call>', []),
    (HERMES, 'a <tool_call>b<tool_call>{"name":"f"}</tool_call>', "a <tool_call>b", [("f", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (LLAMA, '<|python_tag|>{"name":"f","parameters":{}}', "", [("f", "{}")]),
    (LLAMA, '{"name":"f","parameters":{}}\n{"name":"g","arguments":{}}', "", [("f", "{}"), ("g", "{}")]),
    (LLAMA, '{"name": "stranger", "parameters": {}}', '{"name": "stranger", "parameters": {}}', []),
    (LLAMA, ' {"temperature": 3} ', ' {"temperature": 3} ', []),
    (LLAMA, 'Say {"name": "f", "parameters": {}}', 'Say {"name": "f", "parameters": {}}', []),
    (LFM2, "<|tool_call_start|>[f(a=1, b=['x', None]), g()]<|tool_call_end|>Done", "Done",
     [("f", '{"a": 1, "b": ["x", null]}'), ("g", "{}")]),
    (LFM2, '<|tool_call_start|>[{"name": "f", "arguments": {"a":1}}]<|tool_call_end|>', "", [("f", '{"a":1}')]),
    (LFM2, "<|tool_call_start|>[f(a=)]<|tool_call_end|>", "<|tool_call_start|>[f(a=)]<|tool_call_end|>", []),
    (LFM2, "<|tool_call_start|>[f(a=1", "<|tool_call_start|>[f(a=1", []),
    (GEMMA, '<|tool_call>call:f{a:<|"|>x, "y"<|"|>,n:{m:true}}<tool_call|>', "",
     [("f", '{"a": "x, \\"y\\"", "n": {"m": true}}')]),
    (GEMMA, '<|tool_call>call:f{"a":1}<tool_call|>', "", [("f", '{"a":1}')]),
    (FUNCTION_GEMMA, "<start_function_call>call:g{}<end_function_call>", "", [("g", "{}")]),
    (QWEN, "a\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
     "<parameter=o>\n{\"a\":1}\n</parameter>\n</function>\n</tool_call>", "a",
     [("f", '{"s": "12", "n": 12, "o": {"a":1}}')]),
    (QWEN, '<tool_call>\n{"name": "f", "arguments": {"n" :1}}\n</tool_call>', "", [("f", '{"n" :1}')]),
    (QWEN, "<tool_call><function=g></function></tool_call>", "", [("g", "{}")]),
    (QWEN, "<tool_call><function=f><parameter=n>1</function></tool_call>",
     "<tool_call><function=f><parameter=n>1</function></tool_call>", []),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(("form", "text", "shown", "calls"), CASES)
def test_calls_are_taken_out_of_the_text(
    form: ToolFormat, text: str, shown: str, calls: list[tuple[str, str]], size: int
) -> None:
    assert parsed(form, text, size) == (shown, calls)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
words = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@given(words, st.dictionaries(words, values, max_size=4))
def test_python_calls_mean_what_python_means(name: str, arguments: dict[str, object]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    calls = python_calls(f"[{name}({written})]")
    assert calls is not None
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [(name, arguments)]


@given(words, st.dictionaries(words, values, max_size=4))
def test_what_is_json_already_stays_byte_for_byte(name: str, arguments: dict[str, object]) -> None:
    text = json.dumps(arguments, separators=(" , ", " :"))
    for calls in (
        python_calls(f'[{{"name": "{name}", "arguments": {text}}}]'),
        gemma_calls("<e>", f"call:{name}{text}"),
    ):
        assert calls is not None
        assert calls[0].arguments == text


@given(words, st.dictionaries(words, values, max_size=4))
def test_written_calls_are_read_back(name: str, arguments: dict[str, object]) -> None:
    calls = [ToolCall(name, json.dumps(arguments)), ToolCall("other", "{}")]
    for form in FORMATS:
        one_by_one = [calls[:1], calls] if form is not LLAMA else [calls[:1]]
        for some in one_by_one:
            parser = form.parser({name: {}, "other": {}}, parallel=True)
            _, deltas = parser.push(form.written(some))
            parser.finish()
            assert [delta.name for delta in deltas if delta.name] == [call.name for call in some]
            said = "".join(delta.arguments for delta in deltas if delta.number == 0)
            assert json.loads(said) == arguments


@given(st.text(alphabet="[](){}'\"\\,=:ab1-.eN<>\n\ud800", max_size=40))
def test_no_text_breaks_the_readers(text: str) -> None:
    for calls in (python_calls(text), gemma_calls("<e>", text)):
        for call in calls or []:
            json.loads(call.arguments)
            call.arguments.encode()


@pytest.mark.parametrize("text", ["[" * 100, "{'a':" * 100, "-" * 1000, "(" * 100_000])
def test_deep_values_are_no_values(text: str) -> None:
    with pytest.raises(LiteralError):
        LiteralReader(text).value()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ '<|tool_list_start|>' }}", "lfm2"),
        ("<|python_tag|>", "llama"),
        ("<tool_call>", "hermes"),
        ("<tool_call>\n<function=example>", "qwen"),
        ("<|tool_call>call:", "gemma"),
        ("<start_function_call>", "functiongemma"),
        ("nothing of the kind", "hermes"),
    ],
)
def test_the_template_says_which_format_it_is(source: str, name: str) -> None:
    assert format_of(source).name == name
