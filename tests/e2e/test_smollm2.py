"""SmolLM2 answers over HTTP, from the console script to the official client."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from patience import WAIT_S
from running_server import RunningServer, Start

pytestmark = pytest.mark.e2e

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/chat/completions", json={"messages": QUESTION, "temperature": 0, **fields})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_official_client_streams_an_answer_that_names_paris(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        stream=True,
        max_tokens=64,  # so many that they cannot come in a few pieces because somebody was slow
        extra_body={"ignore_eos": True},
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 4


def test_streamed_and_whole_reply_are_the_same_text(client: httpx.Client) -> None:
    whole = ask(client, max_tokens=40)
    with client.stream(
        "POST",
        "/v1/chat/completions",
        json={"messages": QUESTION, "temperature": 0, "max_tokens": 40, "stream": True},
    ) as reply:
        text = "".join(_contents(reply.iter_lines()))
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "stop"


def _contents(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                yield choice["delta"].get("content") or ""


def test_a_seed_gives_the_same_text_alone_and_in_company(client: httpx.Client) -> None:
    def sampled(seed: int) -> str:
        fields = {"messages": QUESTION, "temperature": 1.2, "seed": seed, "max_tokens": 24}
        answer = client.post("/v1/chat/completions", json=fields).json()
        return str(answer["choices"][0]["message"]["content"])

    alone = sampled(7)
    results: dict[int, str] = {}
    threads = [threading.Thread(target=lambda n=n: results.__setitem__(n, sampled(n))) for n in range(5, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[7] == alone
    assert len(set(results.values())) > 1


def test_long_prompt_is_read_once_and_answered_alike_the_second_time(client: httpx.Client) -> None:
    prompt = "One, two, three, four, five, six, seven, eight, nine, ten. " * 40
    fields = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
    cold, warm = (client.post("/v1/completions", json=fields).json() for _ in range(2))
    assert cold["choices"][0]["text"] == warm["choices"][0]["text"]
    assert cold["usage"]["prompt_tokens"] > 600
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == cold["usage"]["prompt_tokens"] - 1


def test_restart_after_kill_gives_the_same_answer(start: Start) -> None:
    first = start()
    with httpx.Client(base_url=first.url, timeout=WAIT_S) as client:
        before = ask(client, max_tokens=16)["choices"][0]["message"]["content"]
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    second = start()
    with httpx.Client(base_url=second.url, timeout=WAIT_S) as client:
        assert ask(client, max_tokens=16)["choices"][0]["message"]["content"] == before
    assert second.stop() == 0


DYING = """
import os, signal, sys
from npuserve.cli import otpu_serve

os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)  # the image has no name yet
sys.exit(otpu_serve.main())
"""


def test_killed_while_building_its_image_leaves_nothing_that_the_next_start_trips_over(
    start: Start, smollm2: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", DYING, "--model", "smollm2", "--port", "0"]
    killed = subprocess.run(command, env={**os.environ, "NPUSERVE_CACHE": str(cache)}, timeout=WAIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(cache.glob("*.tmp"))) == 1
    server = start(environment={"NPUSERVE_CACHE": str(cache)})
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        assert "Paris" in ask(client)["choices"][0]["message"]["content"]
    assert [path.suffix for path in cache.iterdir()] == [".img"]


def test_occupied_port_is_one_line_and_status_1(smollm2: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", "smollm2", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert str(port) in result.stderr
