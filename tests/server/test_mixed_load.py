"""Many clients of every kind at once, some of whom leave: what remains is right, and nothing is left behind."""

import asyncio
import random

import httpx
import pytest

from live_server import Script, Served, null_state, serving
from npuserve.engine.settings import EngineSettings
from patience import WAIT_S, wait_until

NUM_CLIENTS = 120
TEXT = "one two STOP three four five six seven eight nine ten. " * 3


def body(rng: random.Random, number: int) -> dict[str, object]:
    """A request that only this client makes; its reply is its number and TEXT."""
    made: dict[str, object] = {
        "messages": [{"role": "user", "content": f"client {number:03}. " + "word " * rng.choice([0, 5, 40])}],
        "stream": rng.random() < 0.6,
        "temperature": 0,
    }
    if rng.random() < 0.4:
        made["stop"] = rng.choice(["STOP", ["nine", "STOP t"], "no such text"])
    return made


def expected(number: int, stop: object) -> str:
    whole = f"reply {number:03}: {TEXT}"
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return whole[: min((whole.index(text) for text in stops if text in whole), default=len(whole))]


async def one_client(http: httpx.AsyncClient, number: int) -> str | None:
    """The text that the client got, None for one that left."""
    rng = random.Random(number)
    request = body(rng, number)
    leaves_after_s = rng.uniform(0.0, 0.3) if rng.random() < 0.4 else None
    await asyncio.sleep(rng.uniform(0.0, 0.2))
    try:
        async with asyncio.timeout(leaves_after_s):
            reply = await http.post("/v1/chat/completions", json=request)
    except TimeoutError:
        return None
    assert reply.status_code == 200, reply.text
    if request["stream"]:
        assert reply.text.endswith("data: [DONE]\n\n")
        text = "".join(text_of_event(event) for event in reply.text.split("\n\n")[:-2])
    else:
        text = reply.json()["choices"][0]["message"]["content"]
    assert text == expected(number, request.get("stop"))
    return text


def text_of_event(event: str) -> str:
    delta = httpx.Response(200, text=event.removeprefix("data: ")).json()["choices"][0]["delta"]
    return str(delta.get("content", ""))


async def all_clients(served: Served) -> list[str | None]:
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=WAIT_S) as http:
        return await asyncio.gather(*(one_client(http, number) for number in range(NUM_CLIENTS)))


@pytest.mark.parametrize("mixed", [False, True])
def test_every_client_gets_its_own_reply_and_all_slots_come_back(mixed: bool) -> None:
    replies: dict[str, str | list[int]] = {
        f"client {number:03}.": f"reply {number:03}: {TEXT}" for number in range(NUM_CLIENTS)
    }
    settings = EngineSettings(num_slots=4, chunk_size=16, mixed=mixed)
    state = null_state(Script(replies), settings=settings)
    with serving(state) as served:
        texts = asyncio.run(all_clients(served))
        wait_until(lambda: (stats := state.engine.stats()).num_running + stats.num_queued + state.router.num_open == 0)
    assert sum(text is not None for text in texts) > NUM_CLIENTS // 2
    assert any(text is None for text in texts)
