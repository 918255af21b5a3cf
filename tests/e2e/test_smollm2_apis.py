"""Further APIs on the real SmolLM2, through their official clients."""

import anthropic
import httpx
import openai
import pytest

from running_server import RunningServer, Start

pytestmark = pytest.mark.e2e
QUESTION = "What is the capital of France?"
KEY = "s3cret"


@pytest.fixture
def server(start: Start) -> RunningServer:
    return start("--api-key", KEY)


def test_every_api_knows_the_capital_of_france(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        response = client.responses.create(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=30)
        assert "Paris" in response.output_text
    with (
        anthropic.Anthropic(base_url=server.url, api_key=KEY) as anthropic_client,
        anthropic_client.messages.stream(
            model="smollm2",
            max_tokens=30,
            messages=[{"role": "user", "content": QUESTION}],
            extra_body={"temperature": 0},
        ) as stream,
    ):
        assert "Paris" in "".join(stream.text_stream)
    asked = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    reply = httpx.post(f"{server.url}/generate", json=asked, headers={"x-api-key": KEY}, timeout=60)
    assert "Paris" in reply.json()["text"]
    assert httpx.post(f"{server.url}/generate", json=asked).status_code == 401
    assert server.stop() == 0
