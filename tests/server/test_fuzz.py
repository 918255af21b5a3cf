"""Malformed and extreme requests beside a healthy stream: each gets a reply, none breaks anything."""

import asyncio
import json
import re
import time
from collections.abc import Iterator

import pytest

from live_server import Served, null_state, serving
from npuserve.server.keys import KeyRing
from patience import WAIT_S
from request_grammar import FuzzRequest, RequestGrammar

NUM_CLIENTS = 8
# What a client may be told; 503 only by a full queue or an /abort_request.
STATUSES = {200, 204, 400, 401, 403, 404, 405, 408, 409, 413, 431, 503}
HEALTHY = {"messages": [{"role": "user", "content": "the healthy one"}], "stream": True, "max_tokens": 60}


@pytest.fixture
def served() -> Iterator[Served]:
    state = null_state(keys=KeyRing(["healthy", "fuzz"]), context_length=256)
    with serving(state, hosts=frozenset({"localhost", "127.0.0.1"})) as served:
        yield served


async def exchange(port: int, request: FuzzRequest) -> bytes | None:
    """The reply, None where it is not waited for. Raises what a dropped connection raises."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in request.pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if request.leaves:
            return None
        if request.ends:
            writer.write_eof()
        return await asyncio.wait_for(_reply(reader, is_head=request.is_head), WAIT_S)
    finally:
        writer.close()


async def _reply(reader: asyncio.StreamReader, *, is_head: bool) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100 "):
        head = await reader.readuntil(b"\r\n\r\n")
    if is_head or head.startswith(b"HTTP/1.1 204 "):
        return head
    if length := re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.IGNORECASE):
        return head + await reader.readexactly(int(length[1]))
    if b"transfer-encoding: chunked" in head.lower():
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            piece = await reader.read(65536)
            assert piece, f"a stream was cut: {body[-200:]!r}"
            body += piece
        return head + body
    return head + await reader.read()


def assert_sound(reply: bytes, request: FuzzRequest) -> None:
    head, _, body = reply.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert status, f"{request.pieces!r:.2000} got {reply!r:.500}"
    number = int(status[1])
    fine = number in STATUSES and (number != 503 or re.search(rb'"(server_overloaded|cancelled)"', body) is not None)
    broken = b'"internal_error"' in body or b'"device_error"' in body
    assert (fine, broken) == (True, False), f"{request.pieces!r:.3000} got {reply!r:.1000}"
    if number >= 400 and body and not request.is_head:
        assert "error" in json.loads(body), reply


async def healthy_text(port: int) -> str:
    """What the healthy client is told, in one stream."""
    body = json.dumps(HEALTHY).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: healthy\r\n"
    request = FuzzRequest([f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body])
    reply = await exchange(port, request)
    assert reply is not None
    assert reply.startswith(b"HTTP/1.1 200 "), reply
    events = re.findall(rb"data: (\{.*\})\n", reply)
    assert b"data: [DONE]" in reply
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)


async def fuzz(port: int, seed: int, num_requests: int) -> tuple[int, int]:
    """Send all of them; returns how many replies there were, and how many healthy streams ran meanwhile."""
    expected = await healthy_text(port)
    assert len(expected) > 50
    grammar = RequestGrammar(seed, {"x-api-key": "fuzz"})
    requests = iter([grammar.request() for _ in range(num_requests)])
    counts = {"replies": 0, "healthy": 0}
    busy = NUM_CLIENTS

    async def client() -> None:
        nonlocal busy
        try:
            for request in requests:
                try:
                    reply = await exchange(port, request)
                except (OSError, EOFError, TimeoutError) as error:
                    raise AssertionError(f"{request.pieces!r:.3000} got no reply: {error!r}") from error
                if reply is not None:
                    counts["replies"] += 1
                    assert_sound(reply, request)
        finally:
            busy -= 1

    async def healthy() -> None:
        while busy:
            assert await healthy_text(port) == expected
            counts["healthy"] += 1

    await asyncio.gather(healthy(), *(client() for _ in range(NUM_CLIENTS)))
    return counts["replies"], counts["healthy"]


def run(served: Served, caplog: pytest.LogCaptureFixture, seed: int, num_requests: int) -> None:
    num_replies, num_healthy = asyncio.run(fuzz(served.port, seed, num_requests))
    assert num_replies > num_requests * 0.8
    assert num_healthy >= 2
    deadline_s = time.monotonic() + WAIT_S
    while (stats := served.state.engine.stats()).num_running or stats.num_queued or len(served.state.live.find("")):
        assert time.monotonic() < deadline_s, "requests are left over"
        time.sleep(0.01)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_hostile_requests_get_replies_and_a_healthy_stream_goes_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    run(served, caplog, seed=1, num_requests=1500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_many_hostile_requests(served: Served, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    run(served, caplog, seed=seed, num_requests=4000)
