"""A client that leaves frees its slot, in every phase, and disturbs nobody."""

import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from brake import Brake
from live_server import Script, Served, null_state, serving
from npuserve.engine.settings import EngineSettings
from patience import WAIT_S


@pytest.fixture
def brake() -> Brake:
    return Brake()


@pytest.fixture
def served(brake: Brake) -> Iterator[Served]:
    settings = EngineSettings(num_slots=2, max_queue=1)
    script = Script({"": "for ever "}, endless=True)
    state = null_state(script, settings=settings, step_delay_s=0.002, context_length=100_000, brake=brake)
    with serving(state) as served:
        yield served


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


def idle(served: Served) -> bool:
    stats = served.state.engine.stats()
    return stats.num_running == 0 and stats.num_queued == 0 and served.state.router.num_open == 0


def send(served: Served, *, stream: bool, content: str = "go") -> socket.socket:
    """A connection on which a chat request was sent."""
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def await_text(connection: socket.socket) -> None:
    """Read until the reply's text has begun."""
    received = b""
    while b'"content":"f' not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece


def test_client_that_closes_mid_stream_frees_its_slot(served: Served) -> None:
    with send(served, stream=True) as connection:
        await_text(connection)
        assert served.state.engine.stats().num_running == 1
    assert eventually(lambda: idle(served))


def test_client_that_leaves_an_unstreamed_reply_frees_its_slot(served: Served) -> None:
    with send(served, stream=False):
        assert eventually(lambda: served.state.engine.stats().num_tokens_out > 5)
    assert eventually(lambda: idle(served))


def test_client_that_leaves_the_queue_gives_up_its_place(served: Served) -> None:
    with send(served, stream=True), send(served, stream=True):
        assert eventually(lambda: served.state.engine.stats().num_running == 2)
        with send(served, stream=False):
            assert eventually(lambda: served.state.engine.stats().num_queued == 1)
        assert eventually(lambda: served.state.engine.stats().num_queued == 0)
        assert served.state.engine.stats().num_running == 2


def test_client_that_leaves_during_prefill_frees_its_slot(served: Served, brake: Brake) -> None:
    brake.halt_after(3)
    with send(served, stream=True, content="word " * 5000) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        brake.wait_until_halted()
        assert served.state.engine.stats().num_running == 1
    assert eventually(lambda: served.state.router.num_open == 0)
    brake.release()
    assert eventually(lambda: idle(served))
    assert served.state.engine.stats().num_tokens_out == 0


def test_others_go_on_when_one_leaves(served: Served) -> None:
    with send(served, stream=True) as stays, send(served, stream=True) as leaves:
        assert eventually(lambda: served.state.engine.stats().num_running == 2)
        leaves.close()
        assert eventually(lambda: served.state.engine.stats().num_running == 1)
        before = served.state.engine.stats().num_tokens_out
        assert eventually(lambda: served.state.engine.stats().num_tokens_out > before + 20)
        await_text(stays)


def test_full_queue_is_503_with_retry_after(served: Served) -> None:
    with send(served, stream=True), send(served, stream=True), send(served, stream=True):
        assert eventually(lambda: served.state.engine.stats().num_queued == 1)
        refused = httpx.post(
            f"{served.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "stream": True}
        )
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "server_overloaded"


def test_stop_string_frees_the_slot_of_an_endless_reply(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "go"}], "stop": "ever for"}
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["message"]["content"] == "for "
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert idle(served)
