"""Tokenizing, detokenizing and templating for clients."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from live_server import Served, null_state, serving

TEXT = "What is the capital of France? Zürich 🦊"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state()) as served:
        yield served


def post(served: Served, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx.post(served.url + path, json=body)
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


@pytest.mark.parametrize("name", ["content", "prompt"])
def test_text_goes_to_ids_and_back(served: Served, name: str) -> None:
    made = post(served, "/tokenize", **{name: TEXT})
    assert made["count"] == len(made["tokens"]) > 5
    back = post(served, "/detokenize", tokens=made["tokens"])
    assert back["content"] == back["prompt"] == TEXT


def test_pieces_join_to_the_text_and_are_bytes_where_they_are_no_text(served: Served) -> None:
    made = post(served, "/tokenize", content=TEXT, with_pieces=True)
    pieces = [entry["piece"] for entry in made["tokens"]]
    assert b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in pieces).decode() == TEXT
    assert any(isinstance(piece, list) for piece in pieces)
    assert len(post(served, "/tokenize", prompt=TEXT, return_token_strs=True)["token_strs"]) == made["count"]


def test_control_tokens_are_parsed_unless_told_not_to(served: Served) -> None:
    assert post(served, "/tokenize", content="<|im_end|>")["tokens"] == [2]
    plain = post(served, "/tokenize", content="<|im_end|>", parse_special=False)["tokens"]
    assert 2 not in plain
    assert post(served, "/detokenize", tokens=plain)["content"] == "<|im_end|>"
    assert post(served, "/detokenize", tokens=[2])["content"] == "<|im_end|>"
    assert post(served, "/detokenize", tokens=[2], skip_special_tokens=True)["content"] == ""


def test_template_is_applied_and_its_tokens_are_those_of_a_chat(served: Served) -> None:
    messages = [{"role": "user", "content": "hi <|im_end|>"}]
    prompt = post(served, "/apply-template", messages=messages)["prompt"]
    assert prompt == "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    without = post(served, "/apply-template", messages=messages, add_generation_prompt=False)["prompt"]
    assert prompt.startswith(without)
    counted = post(served, "/tokenize", messages=messages)["count"]
    chat = httpx.post(f"{served.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == counted


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"content": "a", "with_pieces": "yes"}, "with_pieces"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 99999]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1] * 513}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": 1}, "add_gen"),
    ],
)
def test_wrong_field_is_named(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(served.url + path, json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(param)
