"""Anthropic's Messages API through the official client."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from calling_model import REPLIES, TEMPLATE
from live_server import Script, Served, null_state, serving
from npuserve.server.keys import KeyRing

WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED: Any = [{"role": "user", "content": "What is the capital?"}]
WEATHER_ASKED: Any = [{"role": "user", "content": [{"type": "text", "text": "weather in Paris?"}]}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    state = null_state(Script(REPLIES), template=TEMPLATE, context_length=4096, keys=KeyRing(["alpha"]))
    with serving(state) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=served.url, api_key="alpha", max_retries=0) as client:
        yield client


def test_text_in_text_out(client: Any) -> None:
    message = client.messages.create(model="tiny", max_tokens=100, messages=ASKED, system="Be brief.")
    assert [(block.type, getattr(block, "text", None)) for block in message.content] == [("text", "Paris it is.")]
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 3


def test_events_come_in_the_official_order(served: Served) -> None:
    body = {"model": "tiny", "max_tokens": 100, "messages": ASKED, "stream": True}
    reply = httpx.post(f"{served.url}/v1/messages", json=body, headers={"x-api-key": "alpha"})
    events = [event.split("\n") for event in reply.text.strip().split("\n\n")]
    names = [lines[0].removeprefix("event: ") for lines in events]
    assert [json.loads(lines[1].removeprefix("data: "))["type"] for lines in events] == names
    deltas = names.count("content_block_delta")
    head = ["message_start", "ping", "content_block_start"]
    assert names == [*head, *["content_block_delta"] * deltas, "content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_is_used_and_its_result_answered(client: Any, stream: bool) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 200, "messages": WEATHER_ASKED, "tools": [WEATHER]}
    if stream:
        with client.messages.stream(**asked) as events:
            assert "".join(events.text_stream).startswith("Let me see.")
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    use = message.content[-1]
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sun"}]}
    history: Any = [
        *WEATHER_ASKED,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model="tiny", max_tokens=200, messages=history, tools=[WEATHER])
    assert getattr(answer.content[0], "text", None) == "It is sunny."


def test_end_is_told_in_the_apis_words(client: Any) -> None:
    cut = client.messages.create(model="tiny", max_tokens=2, messages=ASKED)
    assert cut.stop_reason == "max_tokens"
    stopped = client.messages.create(model="tiny", max_tokens=100, messages=ASKED, stop_sequences=[" it"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " it")


def test_tokens_are_counted_as_they_are_used(client: Any) -> None:
    counted = client.messages.count_tokens(model="tiny", messages=ASKED, system="Be brief.", tools=[WEATHER])
    used = client.messages.create(model="tiny", max_tokens=1, messages=ASKED, system="Be brief.", tools=[WEATHER]).usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_errors_are_the_clients_own(served: Served, client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].role"):
        client.messages.create(model="tiny", max_tokens=5, messages=[{"role": "pope", "content": "a"}])
    with (
        anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        stranger.messages.create(model="tiny", max_tokens=5, messages=ASKED)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": ASKED}, "max_tokens"),
        ({"max_tokens": 0, "messages": ASKED}, "max_tokens"),
        ({"max_tokens": 5}, "messages"),
        ({"max_tokens": 5, "messages": []}, "messages"),
        ({"max_tokens": 5, "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        (
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"max_tokens": 5, "messages": ASKED, "system": 5}, "system"),
        ({"max_tokens": 5, "messages": ASKED, "stop_sequences": [5]}, "stop_sequences[0]"),
        ({"max_tokens": 5, "messages": ASKED, "tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"max_tokens": 5, "messages": ASKED, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"max_tokens": 5, "messages": ASKED, "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"max_tokens": 5, "messages": ASKED, "thinking": {}}, "thinking.type"),
    ],
)
def test_wrong_field_is_named(served: Served, body: dict[str, Any], named: str) -> None:
    reply = httpx.post(f"{served.url}/v1/messages", json=body, headers={"x-api-key": "alpha"})
    assert reply.status_code == 400, reply.text
    told = reply.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert named in told["error"]["message"]


def test_failed_step_is_an_error_event() -> None:
    with (
        serving(null_state(Script({"": "ok then"}), fail_at_step={1})) as served,
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="api_error"),
        client.messages.stream(model="tiny", max_tokens=9, messages=ASKED) as stream,
    ):
        list(stream.text_stream)
