"""What comes before a request has a route: slow, huge, broken and cut requests each get a reply."""

import contextlib
import json
import socket
import time

import pytest

from live_server import Script, null_state, serving
from npuserve.server import body, connection, running
from patience import WAIT_S, wait_until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def exchange(port: int, sent: bytes, *, end: bool = False) -> bytes:
    """All that the server says to `sent`; with `end` our side is closed after it."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(sent)
        if end:
            client.shutdown(socket.SHUT_WR)
        received = b""
        while piece := client.recv(65536):
            received += piece
        return received


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def ends_while_sent(client: socket.socket, piece: bytes, *, pause_s: float) -> bool:
    """Whether the server ends the connection at some time while `piece` is sent again and again."""
    try:
        for _ in range(2_000 if pause_s else 50_000):
            client.sendall(piece)
            time.sleep(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def assert_refused(reply: bytes, status: int, code: str) -> None:
    head, _, content = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), reply
    assert json.loads(content)["error"]["code"] == code


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_400_in_json(sent: bytes) -> None:
    with serving(null_state(Script({"": "ok"}))) as served:
        assert_refused(exchange(served.port, sent), 400, "invalid_http")


def test_endless_head_is_431() -> None:
    with serving(null_state(Script({"": "ok"}))) as served:
        assert_refused(exchange(served.port, HEAD + b"x: " + b"y" * 70_000), 431, "headers_too_large")
        many = HEAD + b"".join(b"x%d: y\r\n" % number for number in range(300)) + b"\r\n"
        assert_refused(exchange(served.port, many), 431, "headers_too_large")


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 10\r\n\r\nhalf", WHOLE[:-1]])
def test_request_that_ends_too_early_is_400(sent: bytes) -> None:
    with serving(null_state(Script({"": "ok"}))) as served:
        assert_refused(exchange(served.port, sent, end=True), 400, "incomplete_request")


def test_slow_head_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    is_late = connection.Connection._head_is_late

    def is_late_once_it_has_begun(one: connection.Connection) -> None:
        if one._num_head_bytes:
            is_late(one)
        else:
            one._await_head()  # our bytes are still on their way

    monkeypatch.setattr(connection.Connection, "_head_is_late", is_late_once_it_has_begun)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    with serving(null_state(Script({"": "ok"}))) as served:
        assert_refused(exchange(served.port, HEAD), 408, "request_timeout")


def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    with serving(null_state(Script({"": "ok"}))) as served:
        assert exchange(served.port, b"") == b""


def test_slow_body_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "PIECE_TIMEOUT_S", 0.05)
    with serving(null_state(Script({"": "ok"}))) as served:
        assert_refused(exchange(served.port, HEAD + b"Content-Length: 10\r\n\r\nhalf"), 408, "request_timeout")


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_upgrade_is_ignored(upgrade: bytes) -> None:
    asking = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + b"\r\nHTTP2-Settings: AAM\r\n"
    with serving(null_state(Script({"": "ok"}))) as served:
        reply = exchange(served.port, WHOLE.replace(b"\r\n\r\n", b"\r\n" + asking + b"\r\n"), end=False)
        assert reply.startswith(b"HTTP/1.1 200 "), reply


def test_chunked_body_of_a_request_that_wishes_to_upgrade_is_read() -> None:
    asking = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    half, rest = BODY[:20], BODY[20:]
    with serving(null_state(Script({"": "ok"}))) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as client:
            client.sendall(asking + b"%x\r\n%s\r\n" % (len(half), half))
            client.sendall(b"%x\r\n%s\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n" % (len(rest), rest))
            received = b""
            while piece := client.recv(65536):
                received += piece
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.count(b"HTTP/1.1") == 1
        assert_refused(exchange(served.port, asking + b"zz\r\n"), 400, "invalid_http")


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"0\r\n", b"X: y\r\n" * 10_000),  # trailers
        (b"0\r\nX: ", b"y" * 60_000),
        (b"5;", b"y" * 60_000),  # the extension of a chunk
    ],
)
@pytest.mark.parametrize("head", [HEAD, b"GET /health HTTP/1.1\r\n"])
def test_endless_framing_of_a_body_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, head: bytes, begin: bytes, endless: bytes
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.05)
    with serving(null_state(Script({"": "ok"}))) as served, connected(served.port) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        assert ends_while_sent(client, endless, pause_s=0)


def test_trailers_are_no_headers_of_the_request() -> None:
    spelled = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    trailers = b"Host: elsewhere.example\r\n" + b"x: y\r\n" * 300
    head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(null_state(Script({"": "ok"})), hosts=frozenset({"localhost"})) as served:
        assert exchange(served.port, head + spelled + trailers + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_idle_connection_is_closed_whatever_comes_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "IDLE_TIMEOUT_S", 1)
    monkeypatch.setattr(connection, "LINGER_S", 0.05)
    with serving(null_state(Script({"": "ok"}))) as served:
        for unfinished, between in ((b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n"), (b"", b"\r\n")):
            with connected(served.port) as client:
                client.sendall(b"GET /health HTTP/1.1\r\n" + unfinished + b"\r\n")
                assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
                assert ends_while_sent(client, between, pause_s=0.02)


def test_idle_connections_make_room_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 3)
    state = null_state(Script({"": "for ever "}, endless=True), context_length=1_000_000)
    asking = json.dumps({"messages": [{"role": "user", "content": "go"}], "stream": True}).encode()
    with serving(state) as served, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(served.port)) for _ in range(3)]
        busy = []
        for number in range(3):
            client = stack.enter_context(connected(served.port))
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(asking) + asking)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionResetError):
                assert idle[number].recv(1) == b""
            busy.append(client)
        assert_refused(exchange(served.port, b"GET /health HTTP/1.1\r\n\r\n"), 503, "server_overloaded")
        assert all(client.recv(65536) for client in busy)


def test_pipelined_requests_are_answered_in_order() -> None:
    last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with serving(null_state(Script({"": "ok"}))) as served:
        assert exchange(served.port, WHOLE + WHOLE + last).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_refused_client_that_is_still_sending_can_read_why(close: bytes) -> None:
    size = (32 << 20) + 1
    with serving(null_state(Script({"": "ok"}))) as served:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as client:
                client.sendall(HEAD + close + b"Content-Length: %d\r\n\r\n" % size)
                for _ in range(size >> 20):
                    client.sendall(b" " * (1 << 20))
                received = b""
                while piece := client.recv(65536):
                    received += piece
            assert_refused(received, 413, "request_too_large")


def test_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_TIMEOUT_S", 1.0)
    state = null_state(Script({"": "for ever "}, endless=True), context_length=1_000_000)
    asking = json.dumps({"messages": [{"role": "user", "content": "go"}], "stream": True}).encode()
    with serving(state) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(asking) + asking)
        wait_until(lambda: state.engine.stats().num_requests_cancelled == 1)
        assert state.engine.stats().num_running == 0
        assert state.engine.stats().num_tokens_out > 0


def test_unfinished_bodies_share_a_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_PENDING_BYTES", 100_000)
    state = null_state(Script({"": "ok"}))
    padded = BODY + b" " * 60_000
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(padded)
    with serving(state) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as slow:
            slow.sendall(head + padded[:-1])
            wait_until(lambda: state.pending_bodies.size_bytes == len(padded) - 1)
            assert_refused(exchange(served.port, head + padded), 503, "server_overloaded")
        wait_until(lambda: not state.pending_bodies.size_bytes)
        assert exchange(served.port, head + padded).startswith(b"HTTP/1.1 200 ")
