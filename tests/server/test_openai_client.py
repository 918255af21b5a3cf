from collections.abc import Iterator

import openai
import pytest

from live_server import Script, Served, null_state, serving

REPLIES: dict[str, str | list[int]] = {
    "France": "The capital of France is Paris.",
    "count": "one two three STOP four",
    "emoji": "Zürich 東京 😀 ok",
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES))) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_completion(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "capital of France?"}])
    assert reply.choices[0].message.content == "The capital of France is Paris."
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"


def test_streamed_chat_completion(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "capital of France?"}], stream=True
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."
    assert [chunk.choices[0].finish_reason for chunk in chunks].count("stop") == 1
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
