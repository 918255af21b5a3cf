"""Every field of the request table: what is out of range is told by name, what is in range is taken."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from live_server import Script, Served, null_state, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script({"": "ok"}))) as served:
        yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url) as http:
        yield http


def post(http: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    base: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "hi"}
    return http.post(path, json={**base, "max_tokens": 3, **fields})


def refused(reply: httpx.Response, param: str | None) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert "\n" not in error["message"]
    return error


SHARED_BAD: dict[str, list[Any]] = {
    "temperature": [-0.1, 5.1, "1", True, []],
    "top_p": [0, -1, 1.01, "x"],
    "min_p": [-0.01, 1.01, {}],
    "top_k": [-2, 1.5, "8"],
    "repetition_penalty": [0, -1, 10.1],
    "repeat_penalty": [0, 11],
    "presence_penalty": [-2.1, 2.1, "0"],
    "frequency_penalty": [-2.1, 2.1],
    "seed": [1.5, "7", 1 << 64, -(1 << 63) - 1],
    "n": [0, 17, 1.0, "1"],
    "best_of": [0, 17],
    "min_tokens": [-1, 4, 0.5],
    "ignore_eos": [1, "true"],
    "skip_special_tokens": [0],
    "include_stop_str_in_output": ["no"],
    "stream": [1, "yes"],
    "stream_options": [[]],
    "stop": ["", 7, ["a"] * 17, "x" * 1025, {}],
    "stop_token_ids": [-1, 10_000, "a", [0] * 17],
    "logit_bias": [[], "x", 3],
    "cache_salt": [5],
    "model": [5],
    "response_format": ["text", []],
    "tools": [{}],
    "parallel_tool_calls": ["yes"],
    "tool_choice": ["sometimes"],
    "max_tokens": [-1, 1.5, True],
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SHARED_BAD.items() for value in values])
def test_value_out_of_range_is_refused_by_name(http: httpx.Client, path: str, name: str, value: Any) -> None:
    error = refused(post(http, path, **{name: value}), name)
    assert name in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"99999": 1}}, "logit_bias.99999"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"best_of": 1, "n": 2}, "best_of"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_fault_inside_a_field_is_told_by_its_path(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    refused(post(http, path, **fields), param)


CHAT_BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls[0]"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [*USER, {"role": "robot", "content": "hi"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"colour": 1}}, "chat_template_kwargs.colour"),
    ({"enable_thinking": 1}, "enable_thinking"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_BAD)
def test_chat_fault_is_told_by_its_path(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused(post(http, CHAT, **fields), param)


TEXT_BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1, 99999]}, "prompt[1]"),
    ({"prompt": [1, "x"]}, "prompt[1]"),
    ({"prompt": ["x", 1]}, "prompt[1]"),
    ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["x"] * 129}, "prompt"),
    ({"prompt": ["x"] * 20, "n": 16}, "prompt"),
    ({"best_of": 2, "stream": True}, "best_of"),
]


@pytest.mark.parametrize(("fields", "param"), TEXT_BAD)
def test_completion_fault_is_told_by_its_path(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused(post(http, TEXT, **fields), param)


def test_more_token_ids_than_the_context_are_told_with_both_numbers(http: httpx.Client, served: Served) -> None:
    context_length = served.state.model.context_length
    error = refused(post(http, TEXT, prompt=[5] * 3000), None)
    assert error["code"] == "context_length_exceeded"
    assert "3000" in error["message"]
    assert str(context_length) in error["message"]


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_text_that_cannot_fit_is_refused_without_counting(http: httpx.Client, path: str, field: str) -> None:
    text = "word " * 500_000
    error = refused(post(http, path, **{field: [{"role": "user", "content": text}] if path == CHAT else text}), None)
    assert error["code"] == "context_length_exceeded"
    assert "2500000 characters" in error["message"]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
NAMED = {"type": "function", "function": {"name": "f"}}
STRUCTURE_BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
    ({"regex": "("}, "regex"),
    ({"regex": 5}, "regex"),
    ({"regex": ""}, "regex"),
    ({"regex": "(?=a)b"}, "regex"),
    ({"grammar": "start: nothing"}, "grammar"),
    ({"grammar": "::= ::="}, "grammar"),
    ({"choice": []}, "choice"),
    ({"choice": ["a", 1]}, "choice[1]"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"type": "object", "not": {}}}, "guided_json"),
    ({"json_schema": 7}, "json_schema"),
    ({"structured_outputs": {"colour": "red"}}, "structured_outputs.colour"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": NAMED}, "tool_choice.function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [TOOL, TOOL]}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), STRUCTURE_BAD)
def test_structure_that_cannot_be_enforced_is_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused(post(http, CHAT, **fields), param)


@pytest.mark.parametrize("field", ["guided_json", "regex", "grammar"])
def test_grammar_beyond_the_size_limit_is_refused(http: httpx.Client, field: str) -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(12_000)}}
    value = large if field == "guided_json" else "a" * 300_000
    assert refused(post(http, CHAT, **{field: value}), field)["code"] == "grammar_too_large"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CHAT_UNBUILT: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].image_url"),
    ({"best_of": 2}, "best_of"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"structural_tag": {}}, "structural_tag"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"custom_logit_processor": "x"}, "custom_logit_processor"),
    ({"lora_path": "x"}, "lora_path"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"logits_processors": ["x"]}, "logits_processors"),
    ({"mirostat": 2}, "mirostat"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"top_a": 0.1}, "top_a"),
    ({"dry_multiplier": 0.8}, "dry_multiplier"),
    ({"xtc_probability": 0.5}, "xtc_probability"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_UNBUILT)
def test_chat_field_without_its_part_is_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refused(post(http, CHAT, **fields), param)["code"] == "unsupported"


@pytest.mark.parametrize(("fields", "param"), [({"tools": [TOOL]}, "tools"), ({"suffix": "x"}, "suffix")])
def test_completion_field_without_its_part_is_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refused(post(http, TEXT, **fields), param)["code"] == "unsupported"


SHARED_GOOD: list[dict[str, Any]] = [
    {"temperature": 0, "top_p": 1, "min_p": 0, "top_k": -1},
    {"temperature": 5, "top_p": 1e-9, "min_p": 1, "top_k": 1_000_000},
    {"top_k": 0, "repetition_penalty": 10, "presence_penalty": -2, "frequency_penalty": 2.0},
    {"repeat_penalty": 1e-6, "seed": (1 << 64) - 1},
    {"seed": -(1 << 63)},
    {"stop": None, "stop_token_ids": None, "logit_bias": None},
    {"stop": [], "stop_token_ids": [], "logit_bias": {}},
    {"stop": ["x" * 1024] * 16, "stop_token_ids": 5},
    {"logit_bias": {"5": -100, "6": 100.0}},
    {"n": 1, "best_of": 1, "min_tokens": 3, "response_format": {"type": "text"}},
    {"stream_options": {}, "cache_salt": "mine"},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [TOOL], "tool_choice": "none"},
    {"user": 5, "metadata": [], "store": "x", "service_tier": 1, "no_such_field": {"a": [None]}},
    {"mirostat": 0, "typical_p": 1.0, "top_a": 0, "dry_multiplier": 0, "xtc_probability": 0, "logits_processors": []},
    {"model": "another-name"},
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("fields", SHARED_GOOD)
def test_value_in_range_is_taken(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    assert post(http, path, **fields).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False, "top_logprobs": 0},
        {"enable_thinking": False, "reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}},
        {"messages": [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant", "tool")]},
        {"messages": [{"role": "assistant", "content": None}, *USER]},
        {"max_tokens": None},
    ],
)
def test_chat_value_in_range_is_taken(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert post(http, CHAT, **fields).status_code == 200
