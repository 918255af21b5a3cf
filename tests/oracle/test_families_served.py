"""Families with layers of several kinds through the whole command: prompts, turns of several requests, reuse."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from npuserve.sim.native import available
from oracle.family_models import FAMILY_MODELS
from running_server import RunningServer, start_server
from tiny_tokenizer import tiny_tokenizer

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import save_tiny_model

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(not available(), reason="the native core is not built")]

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|>{% endfor %}"
SERVED = {
    "smollm3": "smollm3, every fourth layer without positions",
    "lfm2": "lfm2, seven layers",
    "gemma4_text": "gemma4, windows of 100, own and shared keys, two sizes of heads",
    "qwen3_5_text": "qwen3.5, two value heads for a key head",
}
STORY = "The quick brown fox jumps over the lazy dog. " * 6


@pytest.fixture(scope="module", params=SERVED)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp(request.param)
    _, changes = FAMILY_MODELS[SERVED[request.param]]
    tokenizer = tiny_tokenizer()
    size = tokenizer.get_vocab_size()
    changes = changes | {"vocab_size": size}
    if "vocab_size_per_layer_input" in changes:
        changes["vocab_size_per_layer_input"] = size
    save_tiny_model(folder, request.param, **changes)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}))
    environment = {"NPUSERVE_CACHE": str(folder / "images")}
    started = start_server(folder / "log", "--model", str(folder), "--slots", "2", environment=environment)
    yield started
    assert started.stop() == 0


def ask(server: RunningServer, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def test_several_at_once_get_what_each_gets_alone(server: RunningServer) -> None:
    prompts = [f"{number}. {STORY}" for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = [text_of(reply) for reply in threads.map(lambda prompt: ask(server, user(prompt)), prompts)]
    alone = [text_of(ask(server, user(prompt))) for prompt in prompts]
    assert together == alone
    assert all(together)


def test_a_conversation_goes_on_from_a_warm_context(server: RunningServer) -> None:
    first = ask(server, user(STORY))
    turns = [*user(STORY), {"role": "assistant", "content": text_of(first)}, *user("What is the capital of France?")]
    second = ask(server, turns)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    for number in range(3):
        ask(server, user(f"{number} something else. {STORY}"))
    assert text_of(ask(server, turns)) == text_of(second)
