"""The Responses API through the official client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from calling_model import REPLIES, TEMPLATE
from live_server import Script, Served, null_state, serving

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES), template=TEMPLATE, context_length=4096)) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_text_in_text_out(client: Any) -> None:
    response = client.responses.create(model="tiny", input="What is the capital?", instructions="Be brief.")
    assert response.output_text == "Paris it is."
    assert response.status == "completed"
    assert response.instructions == "Be brief."
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_events_come_in_the_official_order_and_add_up(client: Any) -> None:
    events = list(client.responses.create(model="tiny", input="What is the capital?", stream=True))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    head = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    tail = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert kinds == [*head, *["response.output_text.delta"] * len(deltas), *tail]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(deltas) == "Paris it is."
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Paris it is."
    added = next(event for event in events if event.type == "response.output_item.added")
    assert last.response.output[0].id == added.item.id


def test_clients_own_stream_helper_follows_the_events(client: Any) -> None:
    with client.responses.stream(model="tiny", input="weather in Paris?", tools=[WEATHER]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.delta"} <= kinds
    assert [item.type for item in final.output] == ["message", "function_call"]


@pytest.mark.parametrize("stream", [False, True])
def test_function_is_called_and_its_output_answered(client: Any, stream: bool) -> None:
    asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "weather in Paris?"}]}]
    if stream:
        events = list(client.responses.create(model="tiny", input=asked, tools=[WEATHER], stream=True))
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        assert json.loads(done.arguments) == {"city": "Paris"}
        last = events[-1]
        assert last.type == "response.completed"
        response = last.response
    else:
        response = client.responses.create(model="tiny", input=asked, tools=[WEATHER])
    call = response.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    history = [*asked, *[item.model_dump(exclude_none=True) for item in response.output]]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "sun"})
    assert client.responses.create(model="tiny", input=history, tools=[WEATHER]).output_text == "It is sunny."


def test_cut_response_is_incomplete(client: Any) -> None:
    response = client.responses.create(model="tiny", input="What?", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="tiny", input="What?", max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"


def test_structured_text_and_log_probabilities(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    response = client.responses.create(
        model="tiny",
        input="What?",
        text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert set(json.loads(response.output_text)) == {"a"}
    message = response.output[0]
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert len(message.content[0].logprobs or []) > 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": "a", "store": True}, "store"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "temperature": 9}, "temperature"),
        ({"input": "a", "instructions": 5}, "instructions"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "pope", "content": "b"}]}, "input[1].role"),
        ({"input": [{"role": "user"}], "instructions": "x"}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "a", "reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)
def test_wrong_field_is_named_as_the_client_knows_it(served: Served, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(f"{served.url}/v1/responses", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_failed_step_is_an_error_event() -> None:
    with serving(null_state(Script({"": "ok then"}), fail_at_step={1})) as served:
        reply = httpx.post(f"{served.url}/v1/responses", json={"input": "a", "stream": True})
    last = reply.text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.partition("data: ")[2])["code"] == "device_error"
