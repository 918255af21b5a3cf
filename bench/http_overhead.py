"""What the server adds to the device, and what a long prompt does to others.

    python bench/http_overhead.py --out http.json

Starts `otpu-serve` on SmolLM2 in a process of its own and opens the same model as a bare device in this one. Rounds
measure both in turns, with equal numbers of rows, contexts and steps, and the medians count. Then, with streams
running: the longest gap while a 2,000-token prompt comes in, against the time of a chunk; and /health and /v1/stats
during a prompt of 4,000 tokens.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from npuserve.cli.otpu_bench import decode, opened_device
from npuserve.core import Row

CONTEXT = 48
CAPACITY = 6144
SENTENCE = "A ship came into the harbour at night. "


def body(num_tokens: int, number: int, words: int = 4) -> dict[str, Any]:
    """A greedy completion that does not end early; each number has its own prompt."""
    prompt = f"{number} " + SENTENCE * words
    return {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "stream": True, "ignore_eos": True}


async def stream_times(client: httpx.AsyncClient, fields: dict[str, Any]) -> list[float]:
    """When each chunk came, in seconds of the monotonic clock; a bare socket, so that the client costs little."""
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    content = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
    times: list[float] = []
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"the server answered {status!r}")
    while data := await reader.read(1 << 16):
        times += [time.monotonic()] * data.count(b"data: {")
    writer.close()
    return times


async def http_rate(client: httpx.AsyncClient, num_streams: int, num_tokens: int) -> float:
    """Tokens a second of all streams together, between the time the last one began and the first one ended."""
    streams = [stream_times(client, body(num_tokens, 1000 * num_streams + n)) for n in range(num_streams)]
    all_times = await asyncio.gather(*streams)
    began, ended = max(times[0] for times in all_times), min(times[-1] for times in all_times)
    return sum(began < at <= ended for times in all_times for at in times) / (ended - began)


async def gap_beside_prompt(client: httpx.AsyncClient, prompt_words: int) -> dict[str, float]:
    """Gaps of a running stream while a long prompt comes in."""
    running = asyncio.create_task(stream_times(client, body(300, 77)))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    first = await stream_times(client, body(1, 78, prompt_words))
    times = await running
    gaps = [b - a for a, b in pairwise(times) if began <= b <= first[0] + 0.05]
    return {"longest_gap_ms": 1000 * max(gaps), "prompt_s": first[0] - began}


async def answers_beside_prompt(client: httpx.AsyncClient, prompt_words: int) -> dict[str, float]:
    """Latency of the small routes while a prompt of 4,000 tokens is fed beside seven streams."""
    streams = [asyncio.create_task(stream_times(client, body(400, 500 + n))) for n in range(7)]
    await asyncio.sleep(0.3)
    prompt = asyncio.create_task(stream_times(client, body(1, 79, prompt_words)))
    latencies: dict[str, list[float]] = {"/health": [], "/v1/stats": []}
    while not prompt.done():
        for path, seen in latencies.items():
            began = time.monotonic()
            (await client.get(path)).raise_for_status()
            seen.append(1000 * (time.monotonic() - began))
        await asyncio.sleep(0.005)
    await asyncio.gather(*streams)
    return {f"{path} p99 ms": statistics.quantiles(seen, n=100)[98] for path, seen in latencies.items()}


async def measure(url: str, device: Any, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        for rows in (1, 8):
            pairs = []
            for number in range(options.rounds + 1):
                bare = decode(device, rows, CONTEXT, options.steps).tokens_per_s
                served = await http_rate(client, rows, options.steps + 8)
                if number:
                    pairs.append((bare, served))
            result[f"{rows} rows"] = {
                "bare": statistics.median(bare for bare, _ in pairs),
                "served": statistics.median(served for _, served in pairs),
                "ratio": statistics.median(served / bare for bare, served in pairs),
                "added_ms_per_step": statistics.median(1000 * rows * (1 / served - 1 / bare) for bare, served in pairs),
            }
        gap = await gap_beside_prompt(client, 215)
        result["gap beside a 2,000-token prompt"] = {**gap, "chunk_ms": 1000 * chunk_s(device, 1984)}
        result["small routes beside a 4,000-token prompt"] = await answers_beside_prompt(client, 430)
    return result


def chunk_s(device: Any, position: int) -> float:
    """Seconds of a chunk of 64 prompt rows that ends at `position`, a multiple of 64, on the bare device."""
    for start in range(0, position - 64, 64):
        device.step([Row(0, start + n, 100 + n, False) for n in range(64)])
    times = []
    for _ in range(5):
        began = time.monotonic()
        device.step([Row(0, position - 64 + n, 100 + n, False) for n in range(64)])
        times.append(time.monotonic() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", "smollm2", "--port", "0"]
    command += ["--cap", str(CAPACITY), "--kv-ram-gb", "1", "--log-level", "warning"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    url = next(found[1] for line in server.stdout if (found := re.search(r"(http://\S+)/v1", line)))
    try:
        with opened_device("smollm2", 0, 8, CAPACITY) as device:
            result = asyncio.run(measure(url, device, options))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
