"""Structured output, tool calls and log probabilities on the real model."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from running_server import RunningServer

pytestmark = pytest.mark.e2e

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def openai_client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="smollm2", messages=messages, **options)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_reply_is_valid_against_its_schema(openai_client: openai.OpenAI, temperature: float) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    options: dict[str, Any] = {"response_format": wanted, "temperature": temperature, "seed": 4, "max_tokens": 200}
    choice = ask(openai_client, "Describe Anna, 31, who likes chess and hiking, as JSON.", **options).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_required_call_has_valid_arguments_streamed_and_whole(openai_client: openai.OpenAI) -> None:
    question = "What is the weather in Paris?"
    options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 100}
    choice = ask(openai_client, question, **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0].function
    jsonschema.validate(json.loads(call.arguments), WEATHER["function"]["parameters"])
    chunks = ask(openai_client, question, stream=True, **options)
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == call.name
    assert "".join(delta.function.arguments for delta in deltas) == call.arguments


def test_greedy_tokens_are_the_likeliest_and_paris_is_likelier_than_rome(openai_client: openai.OpenAI) -> None:
    choice = ask(
        openai_client, "What is the capital of France?", logprobs=True, top_logprobs=5, temperature=0, max_tokens=12
    ).choices[0]
    for entry in choice.logprobs.content:
        assert entry.logprob == entry.top_logprobs[0].logprob
    text = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).decode()
    assert text == choice.message.content
    totals = {city: prompt_logprob(openai_client, "The capital of France is", city) for city in (" Paris", " Rome")}
    assert totals[" Paris"] > totals[" Rome"]


def prompt_logprob(client: openai.OpenAI, context: str, continuation: str) -> float:
    """Log likelihood of `continuation` after `context`, as evaluation harnesses ask for it."""
    reply = client.completions.create(
        model="smollm2", prompt=context + continuation, max_tokens=1, logprobs=1, echo=True, temperature=0
    )
    lists = reply.choices[0].logprobs
    assert lists is not None
    assert lists.token_logprobs is not None
    assert lists.text_offset is not None
    first = next(place for place, offset in enumerate(lists.text_offset) if offset >= len(context))
    return sum(value or 0.0 for value in lists.token_logprobs[first:-1])
