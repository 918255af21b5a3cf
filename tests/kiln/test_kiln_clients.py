"""The official client against kiln-serve, on each layout of the runtime."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from kiln.fake_runtime import LAYOUTS, words, write_model
from kiln.kiln_server import KilnServer, kiln_serve, write_config

REPLY = "Zürich liegt am See. 東京 is far 😀 away."


@pytest.fixture(scope="module", params=LAYOUTS)
def served(
    request: pytest.FixtureRequest, runtime_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KilnServer]:
    folder = tmp_path_factory.mktemp("models")
    model = write_model(folder / "Qwen3-0.6B-rk3576-w4a16.rkllm", words(REPLY), log=folder / "log")
    config = write_config(folder / "config.ini", llm={"model": model, "library": runtime_of(request.param)})
    with kiln_serve(config) as server:
        yield server


@pytest.fixture
def client(served: KilnServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client:
        yield client


def test_whole_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="qwen", messages=[{"role": "user", "content": "Hello"}])
    assert reply.choices[0].message.content == REPLY
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "Qwen3-0.6B"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(words(REPLY))
    assert reply.usage.prompt_tokens > 0


def test_streamed_reply(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="qwen",
        messages=[{"role": "user", "content": "Hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(words(REPLY))
