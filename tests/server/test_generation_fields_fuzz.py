"""Whatever stands in the fields of tools, structure and log probabilities: a reply or a 400, never a fault of ours."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from live_server import Script, null_state, serving

WORDS = st.sampled_from(
    [
        *("type", "function", "name", "parameters", "properties", "json_schema", "schema", "object", "string", "array"),
        *(
            "required",
            "enum",
            "const",
            "anyOf",
            "oneOf",
            "$ref",
            "#/$defs/a",
            "$defs",
            "a",
            "pattern",
            "(",
            "[a-z]+",
            "",
        ),
        *(
            "json_object",
            "auto",
            "none",
            "f",
            "format",
            "date",
            "minLength",
            "x-guidance",
            "lenient",
            "start: a",
            "items",
        ),
        *("text", "tool_calls", "arguments", "content", "role", "assistant", "tool", "tool_call_id", "id", "strict"),
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats(allow_nan=False, allow_infinity=False) | WORDS
)
VALUES = st.recursive(
    SCALARS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["object", "array", "string", "integer"])},
    optional={
        "properties": st.dictionaries(WORDS, VALUES, max_size=3),
        "items": VALUES,
        "enum": VALUES,
        "anyOf": VALUES,
        "minLength": SCALARS,
        "pattern": VALUES,
        "$defs": VALUES,
        "required": VALUES,
        "minimum": SCALARS,
        "multipleOf": SCALARS,
    },
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": WORDS}, optional={"parameters": SCHEMAS | VALUES, "strict": VALUES, "description": VALUES}
            ),
        }
    ),
    max_size=2,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tools": TOOLS | VALUES,
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | VALUES,
        "parallel_tool_calls": st.booleans() | VALUES,
        "response_format": st.fixed_dictionaries(
            {"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"schema": SCHEMAS | VALUES})}
        )
        | VALUES,
        "regex": st.text(alphabet="ab()[]*+?{}1,|\\^$.", max_size=12) | VALUES,
        "grammar": st.text(alphabet='start:ab"|*+?/()\n ', max_size=30) | VALUES,
        "choice": VALUES,
        "guided_json": VALUES,
        "structured_outputs": VALUES,
        "logprobs": VALUES,
        "top_logprobs": VALUES,
        "n": st.integers(1, 3) | VALUES,
        "best_of": VALUES,
        "separate_reasoning": VALUES,
        "stream": st.booleans(),
        "echo": VALUES,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"])},
    optional={
        "content": st.text(max_size=4) | VALUES,
        "tool_calls": st.lists(VALUES, max_size=2) | VALUES,
        "tool_call_id": VALUES,
    },
)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        serving(null_state(Script({"": "ok"}), context_length=4096)) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        yield http


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(fields=FIELDS, message=MESSAGE)
def test_chat_never_breaks(http: httpx.Client, fields: dict[str, Any], message: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}, message], "max_tokens": 4, **fields}
    checked(http.post("/v1/chat/completions", json=body, timeout=60))


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(fields=FIELDS)
def test_completions_never_break(http: httpx.Client, fields: dict[str, Any]) -> None:
    checked(http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4, **fields}, timeout=60))


def checked(reply: httpx.Response) -> None:
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.text.endswith("data: [DONE]\n\n") or '"invalid_request_error"' in reply.text
