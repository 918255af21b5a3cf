"""Replies held to a grammar, through the official client. The scripted model wants to say something else."""

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from live_server import Script, Served, null_state, serving

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REPLIES: dict[str, str | list[int]] = {
    "prose": "Sure! Here is what you wanted: all of it in plain words.",
    "good": '{"name": "Zoë", "age": 7, "tags": ["b"]}',
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES))) as served:
        yield served


@pytest.fixture(scope="module")
def hashing() -> Iterator[Served]:
    """A model that says random things."""
    with serving(null_state()) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="tiny", messages=messages, **options).choices[0]


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_what_is_valid_already_is_left_as_it_is(client: openai.OpenAI) -> None:
    choice = chat(client, "good", response_format=json_schema(SCHEMA))
    assert (choice.message.content, choice.finish_reason) == (REPLIES["good"], "stop")


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("text", ["prose", "x", "y"])
def test_schema_holds_whatever_the_model_wants(hashing: Served, served: Served, text: str, temperature: float) -> None:
    for one in (hashing, served):
        with openai.OpenAI(base_url=f"{one.url}/v1", api_key="none") as client:
            format_ = json_schema(SCHEMA)
            choice = chat(client, text, response_format=format_, temperature=temperature, seed=5, max_tokens=400)
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_streamed_is_the_same(hashing: Served) -> None:
    with openai.OpenAI(base_url=f"{hashing.url}/v1", api_key="none") as client:
        options: dict[str, Any] = {"response_format": json_schema(SCHEMA), "max_tokens": 400}
        whole = chat(client, "x", **options).message.content
        messages: list[Any] = [{"role": "user", "content": "x"}]
        stream: Any = client.chat.completions.create(model="tiny", messages=messages, stream=True, **options)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_json_object(client: openai.OpenAI) -> None:
    choice = chat(client, "prose", response_format={"type": "json_object"}, max_tokens=300)
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_white_space_is_bounded(served: Served) -> None:
    """A model that only wants to write spaces comes to an end all the same."""
    spaces = served.tokenizer.encode_plain(" ")
    with serving(null_state(Script({"": spaces}, endless=True))) as endless, httpx.Client(base_url=endless.url) as http:
        body = {"messages": [{"role": "user", "content": "x"}], "response_format": json_schema(SCHEMA)}
        choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert not re.search(r"[:,{\[]\s\s", choice["message"]["content"])


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("regex", "[0-9]{3}-[a-f]{2}", r"[0-9]{3}-[a-f]{2}"),
        ("guided_regex", "(yes|no)!", r"(yes|no)!"),
        ("choice", ["Paris", 'Zürich "東京"'], r"Paris|Zürich \"東京\""),
        ("guided_choice", ["left", "right"], r"left|right"),
        ("grammar", 'start: "a" b\nb: /[xy]{2}/', r"a[xy]{2}"),
        ("ebnf", 'root ::= "b" [0-9] [0-9]', r"b[0-9]{2}"),
        ("guided_json", {"type": "integer", "minimum": 10, "maximum": 99}, r"[1-9][0-9]"),
        ("json_schema", '{"enum": ["one", "two"]}', r'"(one|two)"'),
        ("structured_outputs", {"regex": "z{4}"}, r"zzzz"),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_other_spellings(served: Served, field: str, value: Any, pattern: str, route: str) -> None:
    prompt = {"prompt": "prose"} if route == "completions" else {"messages": [{"role": "user", "content": "prose"}]}
    with httpx.Client(base_url=f"{served.url}/v1/") as http:
        reply = http.post(route, json={**prompt, field: value, "max_tokens": 60}).json()
    choice = reply["choices"][0]
    text = choice["text"] if route == "completions" else choice["message"]["content"]
    assert re.fullmatch(pattern, text)
    assert choice["finish_reason"] == "stop"


def test_cut_reply_ends_with_length(client: openai.OpenAI) -> None:
    choice = chat(client, "good", response_format=json_schema(SCHEMA), max_tokens=4)
    assert choice.finish_reason == "length"
    assert REPLIES["good"][: len(choice.message.content)] == choice.message.content


def test_stop_string_ends_it_too(client: openai.OpenAI) -> None:
    choice = chat(client, "good", response_format=json_schema(SCHEMA), stop='"age"')
    assert (choice.message.content, choice.finish_reason) == ('{"name": "Zoë", ', "stop")


def test_ignored_end_of_turn_and_min_tokens_do_not_break_it_open(client: openai.OpenAI) -> None:
    body = {"regex": "[0-9]{2}", "ignore_eos": True, "min_tokens": 20}
    choice = chat(client, "prose", max_tokens=30, extra_body=body)
    assert re.fullmatch("[0-9]{2}", choice.message.content)
    assert choice.finish_reason == "stop"


def test_every_choice_keeps_to_the_grammar_by_itself(hashing: Served) -> None:
    with openai.OpenAI(base_url=f"{hashing.url}/v1", api_key="none") as client:
        options: dict[str, Any] = {"n": 4, "temperature": 2, "seed": 1, "extra_body": {"regex": "[a-z]{6}"}}
        messages: list[Any] = [{"role": "user", "content": "x"}]
        reply = client.chat.completions.create(model="tiny", messages=messages, **options)
    texts = [choice.message.content or "" for choice in reply.choices]
    assert all(re.fullmatch("[a-z]{6}", text) for text in texts)
    assert len(set(texts)) > 1


def test_grammar_that_grows_too_complex_on_the_way_is_the_clients_fault(hashing: Served) -> None:
    with httpx.Client(base_url=hashing.url, timeout=60) as http:
        body = {"prompt": "x", "regex": r"(\w+\s?){1,400}", "max_tokens": 300, "temperature": 3, "seed": 2}
        reply = http.post("/v1/completions", json=body)
        assert reply.status_code in (200, 400)
        if reply.status_code == 400:
            assert reply.json()["error"]["param"] == "regex"
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200


def test_companions_without_a_grammar_are_not_touched(served: Served) -> None:
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        body: dict[str, Any] = {"prompt": f"{number} prose", "max_tokens": 40}
        if number % 2:
            body["regex"] = "[0-9]{9}"
        with httpx.Client(base_url=served.url, timeout=60) as http:
            texts[number] = http.post("/v1/completions", json=body).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(texts[number] == REPLIES["prose"] for number in range(0, 8, 2))
    assert all(re.fullmatch("[0-9]{9}", texts[number]) for number in range(1, 8, 2))
