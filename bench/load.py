"""Load on a running server: first-token and gap percentiles, tokens per second, as a table, JSON and a plot.

    otpu-serve --model smollm2 &
    python bench/load.py --url http://127.0.0.1:8000 --concurrency 8 --requests 64 --out load.json --plot load.png

Closed loop by default: `--concurrency` clients, each sending its next request when it has its reply. With `--rate N`
open loop: requests arrive at random (Poisson), N a second on average, whether or not the server keeps up. `--null`
serves the null device itself, in a process of its own on one processor, and so measures the server without a model.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PERCENTILES = (50, 90, 99)
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "wait")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the server; lengths in words and tokens."""

    url: str
    concurrency: int
    num_requests: int
    prompt_words: int
    max_tokens: int
    rate: float | None
    api_key: str | None
    same_prompt: bool


@dataclass(slots=True)
class Reply:
    """One reply's times: seconds since it was sent at which each event came."""

    sent_s: float
    events_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a run; seconds, but where a name says milliseconds."""

    num_replies: int
    num_failed: int
    num_tokens: int
    duration_s: float
    tokens_per_s: float
    first_token_ms: dict[str, float]
    gap_ms: dict[str, float]
    reply_ms: dict[str, float]
    tokens_per_cpu_s: float | None = None


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Milliseconds of seconds, by the nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{p}": round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in PERCENTILES}


async def ask(load: Load, prompt: str) -> Reply:
    """Stream one chat reply over a connection of its own; a bare socket, so that little but the server is measured."""
    parts = urlsplit(load.url)
    asked = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": load.max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = json.dumps(asked).encode()
    key = f"Authorization: Bearer {load.api_key}\r\n" if load.api_key else ""
    head = f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{key}"
    reply = Reply(time.perf_counter())
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=parts.scheme == "https" or None)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while piece := await reader.read(1 << 16):
            if b'"content":"' in piece:
                reply.events_s.append(time.perf_counter() - reply.sent_s)
            received += piece
        writer.close()
    except OSError as error:
        reply.error = str(error)
        return reply
    found = re.search(rb'"completion_tokens":(\d+)', received)
    if found is None or b"data: [DONE]" not in received:
        reply.error = received[:300].decode("utf-8", "replace")
    else:
        reply.num_tokens = int(found[1])
    return reply


def prompts(load: Load) -> list[str]:
    """Different prompts, unless they are to be the same; the same ones in every run."""
    chance = random.Random(1)
    made = [" ".join(chance.choices(_WORDS, k=load.prompt_words)) for _ in range(load.num_requests)]
    return [made[0]] * load.num_requests if load.same_prompt else made


def cpu_s(process: "subprocess.Popen[str]") -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(load: Load) -> tuple[Result, list[Reply]]:
    """Send everything; the result and what it was made from."""
    waiting = iter(prompts(load))
    replies: list[Reply] = []

    async def client() -> None:
        for prompt in waiting:
            replies.append(await ask(load, prompt))

    async def arrivals(rate: float) -> None:
        chance = random.Random(2)
        async with asyncio.TaskGroup() as group:
            for prompt in waiting:
                group.create_task(late(prompt))
                await asyncio.sleep(chance.expovariate(rate))

    async def late(prompt: str) -> None:
        replies.append(await ask(load, prompt))

    started_s = time.perf_counter()
    if load.rate is None:
        await asyncio.gather(*(client() for _ in range(load.concurrency)))
    else:
        await arrivals(load.rate)
    return summary(replies, time.perf_counter() - started_s), replies


def summary(replies: Sequence[Reply], duration_s: float) -> Result:
    good = [reply for reply in replies if reply.error is None and reply.events_s]
    gaps = [b - a for reply in good for a, b in zip(reply.events_s, reply.events_s[1:], strict=False)]
    num_tokens = sum(reply.num_tokens for reply in good)
    return Result(
        num_replies=len(good),
        num_failed=len(replies) - len(good),
        num_tokens=num_tokens,
        duration_s=round(duration_s, 3),
        tokens_per_s=round(num_tokens / duration_s, 1),
        first_token_ms=percentiles([reply.events_s[0] for reply in good]),
        gap_ms=percentiles(gaps),
        reply_ms=percentiles([reply.events_s[-1] for reply in good]),
    )


def plot(replies: Sequence[Reply], path: Path) -> None:
    """Two distributions: time to the first token, and gaps between events."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    firsts = sorted(1e3 * reply.events_s[0] for reply in replies if reply.events_s)
    gaps = sorted(1e3 * (b - a) for reply in replies for a, b in zip(reply.events_s, reply.events_s[1:], strict=False))
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for axis, values, title in ((axes[0], firsts, "time to first token"), (axes[1], gaps, "gap between events")):
        axis.plot(values, [index / max(1, len(values)) for index in range(len(values))])
        axis.set_xlabel(f"{title}, ms")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of replies or gaps")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def null_server(num_slots: int) -> tuple["subprocess.Popen[str]", str]:
    """A server on the null device, on one processor, and its address."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    script = f"""
import os, sys, time
sys.path.insert(0, {str(tests)!r})
sys.setswitchinterval(0.0005)  # as the command does
os.sched_setaffinity(0, {{max(os.sched_getaffinity(0))}})
from live_server import null_state, serving
from npuserve.engine.settings import EngineSettings
state = null_state(settings=EngineSettings(num_slots={num_slots}), context_length=2048, num_slots={num_slots},
                   max_rows={max(64, num_slots)})
with serving(state) as served:
    print(served.url, flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--null", action="store_true", help="serve the null device and measure that")
    parser.add_argument("--api-key")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rate", type=float, help="open loop: requests a second")
    parser.add_argument("--prompt-words", type=int, default=50)
    parser.add_argument("--same-prompt", action="store_true", help="all requests have one prompt, which is cached")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--plot", type=Path, help="draw the distributions; needs matplotlib")
    given = parser.parse_args()
    process: subprocess.Popen[str] | None = None
    if given.null:
        process, given.url = null_server(given.concurrency)
    load = Load(
        url=given.url.rstrip("/"),
        concurrency=given.concurrency,
        num_requests=given.requests,
        prompt_words=given.prompt_words,
        max_tokens=given.max_tokens,
        rate=given.rate,
        api_key=given.api_key,
        same_prompt=given.same_prompt,
    )
    try:
        before_s = cpu_s(process) if process is not None else 0.0
        result, replies = asyncio.run(run(load))
        if process is not None:
            used_s = cpu_s(process) - before_s
            result = replace(result, tokens_per_cpu_s=round(result.num_tokens / used_s, 1))
    finally:
        if process is not None:
            process.communicate()
    report(load, result, replies, given.out, given.plot)


def report(load: Load, result: Result, replies: Sequence[Reply], out: Path | None, picture: Path | None) -> None:
    told: dict[str, Any] = {"load": {**asdict(load), "api_key": None}, "result": asdict(result)}
    if out is not None:
        out.write_text(json.dumps(told, indent=1) + "\n")
    if picture is not None:
        plot(replies, picture)
    print(f"{result.num_replies} replies, {result.num_failed} failed, {result.num_tokens} tokens")
    print(f"{result.tokens_per_s:,.0f} tokens/s in {result.duration_s:.2f} s")
    if result.tokens_per_cpu_s is not None:
        print(f"{result.tokens_per_cpu_s:,.0f} tokens per second of the server's processor time")
    for name in ("first_token_ms", "gap_ms", "reply_ms"):
        values = getattr(result, name)
        print(f"{name:15}" + "".join(f"{key:>6} {value:9.2f}" for key, value in values.items()))
    failed = next((reply.error for reply in replies if reply.error), None)
    if failed is not None:
        sys.exit(f"a reply failed: {failed}")


if __name__ == "__main__":
    main()
