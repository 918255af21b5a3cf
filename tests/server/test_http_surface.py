"""Routes, methods, bodies and errors as any HTTP client sees them."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from live_server import Script, Served, null_state, serving
from npuserve.server import sse
from npuserve.server.app import ROUTES
from patience import WAIT_S

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script({"": "ok"})), hosts=frozenset({"127.0.0.1", "localhost", "::1"})) as served:
        yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url) as http:
        yield http


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def paths() -> list[str]:
    return [path.replace("{name:path}", "tiny") for path in ROUTES]


@pytest.mark.parametrize("path", paths())
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
def test_head_and_options_work_everywhere(http: httpx.Client, path: str, method: str) -> None:
    reply = http.request(method, path)
    assert reply.status_code in (200, 204)
    assert reply.content == b""


@pytest.mark.parametrize("path", paths())
def test_wrong_method_is_405_with_allow(http: httpx.Client, path: str) -> None:
    reply = http.request("DELETE", path)
    assert reply.status_code == 405
    if path.startswith("/v1/messages"):  # another API's errors
        assert reply.json()["type"] == "error"
    else:
        assert error_of(reply, 405)["code"] == "method_not_allowed"
    assert {"HEAD", "OPTIONS"} < set(reply.headers["allow"].split(", "))


def test_unknown_path_is_404_in_json(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "not_found"


@pytest.mark.parametrize("path", ["/health/", "/v1/models/", "/v1/models/tiny/"])
def test_trailing_slash_is_the_same_route(http: httpx.Client, path: str) -> None:
    assert http.get(path).json() == http.get(path.rstrip("/")).json()
    assert http.post(CHAT + "/", json=HELLO).status_code == 200


def test_health_says_ok(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"seed": ' + b"9" * 6000 + b"}",
        b'{"a": "\xff"}',
        b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"a": ' + b"[" * 100_000,
        b"{} trailing",
    ],
)
def test_body_that_is_not_a_sound_json_object_is_400(http: httpx.Client, body: bytes) -> None:
    assert error_of(http.post(CHAT, content=body), 400)["type"] == "invalid_request_error"


def test_nesting_up_to_the_limit_is_taken(http: httpx.Client) -> None:
    deep = json.dumps({**HELLO, "a": None})[:-5] + "[" * 63 + "]" * 63 + "}"
    assert http.post(CHAT, content=deep).status_code == 200


def test_lone_surrogate_becomes_a_replacement_character(http: httpx.Client) -> None:
    body = rb'{"prompt": "a\ud800b\udc00\ud83d\ude00\\ud800", "max_tokens": 0, "echo": true}'
    assert http.post("/v1/completions", content=body).json()["choices"][0]["text"] == "a\ufffdb\ufffd😀\\ud800"


def test_body_over_the_limit_is_413(http: httpx.Client) -> None:
    assert error_of(http.post(CHAT, content=b" " * ((32 << 20) + 1)), 413)["code"] == "request_too_large"


def test_body_over_the_limit_in_chunks_is_413(served: Served) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * (1 << 20)

    reply = httpx.post(served.url + CHAT, content=body())
    assert error_of(reply, 413)["code"] == "request_too_large"


def test_body_of_a_million_messages_is_400_at_once(http: httpx.Client) -> None:
    body = b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 1_000_000) + b"]}"
    assert error_of(http.post(CHAT, content=body), 400)["code"] == "invalid_json"
    many = {"messages": [{"role": "user", "content": ""}] * 5000}
    assert error_of(http.post(CHAT, json=many), 400)["param"] == "messages"
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 2000}]}
    assert error_of(http.post(CHAT, json=parts), 400)["param"] == "messages[0].content"


def test_headers_over_the_limit_are_431(http: httpx.Client) -> None:
    assert error_of(http.get("/health", headers={"x-long": "x" * 33_000}), 431)["code"] == "headers_too_large"


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost:1234", 200), ("[::1]:80", 200)])
def test_foreign_host_is_refused_on_loopback(http: httpx.Client, host: str, status: int) -> None:
    assert http.get("/health", headers={"Host": host}).status_code == status


def test_connection_is_kept_for_the_next_request(served: Served) -> None:
    body = json.dumps({**HELLO, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as connection:
        for _ in range(3):
            connection.sendall(head + body)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(65536)
            assert received.count(b"data: [DONE]") == 1


def test_stream_is_an_event_stream_that_nobody_buffers(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**HELLO, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])


def test_failed_step_is_500_before_the_first_byte_and_an_error_event_after_it() -> None:
    state = null_state(Script({"": "ok"}), fail_at_step={0, 2})
    with serving(state) as served, httpx.Client(base_url=served.url) as http:
        error = error_of(http.post(CHAT, json=HELLO), 500)
        assert (error["type"], error["code"]) == ("server_error", "device_error")
        events = http.post(CHAT, json={**HELLO, "stream": True}).text.strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "device_error"
        assert not any("[DONE]" in event for event in events)
        assert http.post(CHAT, json=HELLO).status_code == 200


def test_template_refusal_is_400() -> None:
    with serving(null_state(template="{{ raise_exception('no system role') }}")) as served:
        error = error_of(httpx.post(served.url + CHAT, json=HELLO), 400)
    assert error["param"] == "messages"
    assert "no system role" in error["message"]


def test_long_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.02)
    gate = threading.Event()

    def script(history: tuple[int, ...]) -> int:
        assert gate.wait(WAIT_S)
        return 2

    with (
        serving(null_state(script)) as served,
        httpx.stream("POST", served.url + CHAT, json={**HELLO, "stream": True}) as reply,
    ):
        pieces = reply.iter_text()
        comments = [next(pieces), next(pieces)]
        gate.set()
        rest = "".join(pieces)
    assert all(comment.startswith(": ") and comment.endswith("\n\n") for comment in comments)
    assert rest.endswith("data: [DONE]\n\n")


def test_stopping_server_says_so() -> None:
    state = null_state(Script({"": "ok"}))
    with serving(state) as stopping:
        state.stopping = True
        health = httpx.get(f"{stopping.url}/health")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})
