"""kiln-serve on the board that runs the tests: `scripts/test --hw=rockchip tests/hw`, with its own configuration."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from kiln.kiln_server import kiln_in_process
from live_server import Served
from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_doctor import Verdict, examine

CONFIG = Path(os.environ.get("KILN_CONFIG", "/etc/kiln/config.ini"))


@pytest.fixture(autouse=True, scope="module")
def _board(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--hw") != "rockchip":
        pytest.skip("needs a Rockchip board; run with --hw=rockchip")


@pytest.fixture(scope="module")
def served(_board: None) -> Iterator[Served]:
    with kiln_in_process(CONFIG) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=300) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **options: object) -> openai.types.chat.ChatCompletion:
    messages = [{"role": "user", "content": text}]
    reply = client.chat.completions.create(model="npu", messages=messages, **options)  # type: ignore[call-overload]
    assert isinstance(reply, openai.types.chat.ChatCompletion)
    return reply


def test_the_doctor_finds_nothing_wrong() -> None:
    settings = parse_arguments(["--config", str(CONFIG), "--port", "0"], {})
    assert [str(finding) for finding in examine(settings) if finding.verdict is Verdict.FAIL] == []


def test_the_model_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    reply = ask(client, "What is the capital of France?", max_tokens=200)
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 5


def test_the_length_is_honoured(client: openai.OpenAI) -> None:
    reply = ask(client, "Count from one to a hundred.", max_tokens=8)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8


def test_text_outside_ascii_arrives_whole(client: openai.OpenAI) -> None:
    reply = ask(client, "Write 'good morning' in Chinese, with an emoji.", max_tokens=60)
    assert "\ufffd" not in (reply.choices[0].message.content or "")


def test_a_picture_is_judged_where_a_vision_model_is_configured(served: Served) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    statuses = {
        task: httpx.post(f"{served.url}/v1/vision/{task}", content=buffer.getvalue(), timeout=60).status_code
        for task in ("classify", "detect")
    }
    assert set(statuses.values()) <= {200, 503}
