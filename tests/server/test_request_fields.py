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
SHARED_UNBUILT: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"regex": "a+"}, "regex"),
    ({"grammar": "start: 'a'"}, "grammar"),
    ({"choice": ["a"]}, "choice"),
    ({"guided_json": {}}, "guided_json"),
    ({"tools": [TOOL]}, "tools"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "param"), SHARED_UNBUILT)
def test_field_without_its_part_is_refused_rather_than_ignored(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    error = refused(post(http, path, **fields), param)
    assert error["code"] == "unsupported"
    assert "not supported by this server yet" in error["message"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CHAT_UNBUILT: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": True}, "logprobs"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_UNBUILT)
def test_chat_field_without_its_part_is_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refused(post(http, CHAT, **fields), param)["code"] == "unsupported"


@pytest.mark.parametrize(("fields", "param"), [({"logprobs": 0}, "logprobs"), ({"suffix": "x"}, "suffix")])
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
