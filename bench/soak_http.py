"""Many clients over HTTP for a long time, some of whom leave: nobody errs, nothing leaks.

    python bench/soak_http.py --minutes 30 --clients 16 --out soak.json

Starts `otpu-serve` on SmolLM2 with a RAM and a disk tier, sends requests of mixed lengths (chat and completions,
streamed and not, shared and fresh prefixes), of which a fifth are left in the middle and a tenth aborted by name, and
looks once a minute at the server's memory, file descriptors and books. At the end everything must be idle, nothing may
have failed, and memory may not have grown since the first quarter by more than a tenth.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

WORDS = [
    "the",
    "sea",
    "a",
    "ship",
    "wind",
    "harbour",
    "light",
    "over",
    "under",
    "slowly",
    "and",
    "then",
    "nobody",
    "saw",
    "it",
    "return",
    "until",
    "morning",
]


class Soak:
    """Clients that go on until the deadline; `counts` says what came of their requests."""

    def __init__(self, client: httpx.AsyncClient, seconds: float, seed: int) -> None:
        self.client = client
        self.deadline = time.monotonic() + seconds
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    async def run_client(self, number: int) -> None:
        turn = 0
        while time.monotonic() < self.deadline:
            turn += 1
            try:
                await self._one(f"{number}-{turn}")
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    async def _one(self, rid: str) -> None:
        chance = self.random.random()
        body = self._body()
        if chance < 0.2:
            await self._leave(body)
        elif chance < 0.3:
            await self._abort(rid)
        else:
            reply = await self.client.post("/v1/chat/completions", json=body)
            self._judge(reply)

    def _body(self) -> dict[str, Any]:
        shared = "Tell me a story. " * self.random.choice([1, 8, 30]) if self.random.random() < 0.5 else ""
        words = " ".join(self.random.choices(WORDS, k=self.random.choice([4, 30, 200, 700])))
        return {
            "messages": [{"role": "user", "content": shared + words}],
            "max_tokens": self.random.choice([1, 8, 40, 120]),
            "temperature": self.random.choice([0, 0.8]),
        }

    async def _leave(self, body: dict[str, Any]) -> None:
        after = self.random.randrange(6)
        request = self.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True})
        async with request as reply:
            async for _ in reply.aiter_lines():
                after -= 1
                if after < 0:
                    break
        self.counts["left"] += 1

    async def _abort(self, rid: str) -> None:
        body = {"text": "Once upon a time", "rid": rid, "sampling_params": {"max_new_tokens": 200}}
        generating = asyncio.create_task(self.client.post("/generate", json=body))
        await asyncio.sleep(self.random.random() * 0.5)
        reply = await self.client.post("/abort_request", json={"rid": rid})
        if reply.status_code != 200:
            self.errors.append(f"abort: {reply.status_code} {reply.text[:200]}")
        done = await generating
        if done.status_code not in (200, 503):
            self.errors.append(f"aborted: {done.status_code} {done.text[:200]}")
        self.counts["aborted"] += 1

    def _judge(self, reply: httpx.Response) -> None:
        self.counts["answered"] += 1
        if reply.status_code != 200:
            self.errors.append(f"{reply.status_code} {reply.text[:200]}")


def sample(pid: int, started: float) -> dict[str, Any]:
    """Memory and descriptors of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"RssAnon:\s+(\d+)", status)
    assert resident
    return {
        "minute": round((time.monotonic() - started) / 60, 1),
        "anonymous_mb": int(resident[1]) / 1000,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def soak(url: str, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    samples = []
    limits = httpx.Limits(max_connections=4 * options.clients)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        run = Soak(client, options.minutes * 60, options.seed)
        clients = [asyncio.create_task(run.run_client(number)) for number in range(options.clients)]
        while any(not task.done() for task in clients):
            await asyncio.wait(clients, timeout=min(60, options.minutes * 6))
            samples.append(sample(pid, started))
            print(samples[-1], dict(run.counts), f"{len(run.errors)} errors", flush=True)
        await asyncio.sleep(2)
        stats = (await client.get("/v1/stats")).json()
        health = await client.get("/health")
    samples.append(sample(pid, started))
    return {"counts": run.counts, "errors": run.errors, "samples": samples, "stats": stats, "health": health.json()}


def verdict(result: dict[str, Any]) -> list[str]:
    """What is wrong; empty when all is well."""
    problems = list(result["errors"][:5])
    if result["stats"]["running"] or result["stats"]["queued"]:
        problems.append("requests are left in the engine")
    if result["health"] != {"status": "ok"}:
        problems.append(f"health is {result['health']}")
    samples = result["samples"]
    early = max(entry["anonymous_mb"] for entry in samples[: max(1, len(samples) // 4)])
    if samples[-1]["anonymous_mb"] > 1.1 * early:
        problems.append(f"memory grew from {early:.0f} to {samples[-1]['anonymous_mb']:.0f} MB")
    if samples[-1]["descriptors"] > samples[0]["descriptors"] + 8:
        problems.append("file descriptors grew")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", "smollm2", "--port", "0"]
        command += ["--kv-ram-gb", "0.5", "--kv-disk-gb", "1", "--kv-dir", folder, "--log-level", "warning"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        url = next(found[1] for line in server.stdout if (found := re.search(r"(http://\S+)/v1", line)))
        try:
            result = asyncio.run(soak(url, server.pid, options))
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
    problems = verdict(result) + ([] if status == 0 else [f"the server ended with status {status}"])
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(dict(result["counts"]), "problems:", problems or "none")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
