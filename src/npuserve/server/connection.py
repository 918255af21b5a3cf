"""One client's connection: bounds on what comes before a request has a route, and refusals that are JSON."""

import asyncio
import contextlib
import resource
import socket
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from npuserve.errors import OverloadedError
from npuserve.server.errors import HttpError, error_json

# A little more than the headers may have: those that are only a little too long get their refusal by name.
_MAX_HEAD_BYTES = 64 << 10
# What may stand between two pieces of a body, or behind it: sizes of chunks, their extensions, trailers.
_MAX_FRAMING_BYTES = 64 << 10
_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
HEAD_TIMEOUT_S = 30.0
LINGER_S = 2.0
# A peer that takes none of what it was sent for so long is gone, and so is one that does not answer at all.
UNREAD_TIMEOUT_S = 60.0


# Files that the rest of the server may have open, and connections that are accepted before one of them is looked at.
_RESERVED_FILES = 160
ACCEPTED_AT_ONCE = 100
_MOST_REFUSED = 20  # at a time, for their last seconds


def most_connections() -> int:
    """How many connections the limit of open files allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else max(limit - _RESERVED_FILES, limit // 2)


class Connection(HttpToolsProtocol):
    """A request's head must come in time and be of bounded size; what is no HTTP is told so in JSON.

    A client that ends its side before its request is complete gets a 400; one that does so after it has left. When
    there are too many connections, the one that has waited longest without a request makes room; without any such the
    new one is refused.
    """

    _idle_since_s = 0.0

    _num_head_bytes = 0
    _in_head = True
    _in_message = False
    _num_framing_bytes = 0
    _awaits_body = False  # of a request that wishes for another protocol
    _is_deaf = False  # after such a request
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Transport(transport, self)))
        _give_up_dead_peers(transport.get_extra_info("socket"))
        self._idle_since_s = self.loop.time()
        self._await_head()
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Not uvicorn's, which gives up the time limit of an idle connection for whatever comes; see on_message_begin.
        if self.transport.is_closing() or self._is_deaf:
            return  # what a refused client still sends
        if self._in_head:
            self._num_head_bytes += len(data)
        elif self._in_message:
            self._num_framing_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._num_framing_bytes > _MAX_FRAMING_BYTES:
            self._refuse_framing()
        if self._in_head and self._num_head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            message = f"the headers have more than {_MAX_HEAD_BYTES} bytes; at most 32768 are taken"
            self._refuse(HttpError(431, message, code="headers_too_large"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is spoken here, and the parser stops at the wish for one: the rest is the body.
            self.cycle.keep_alive = False
            if not self._awaits_body:
                self._is_deaf = True
                return
            self._awaits_body = False
            self.parser = httptools.HttpRequestParser(_Body(self))
            framing = [b"%s: %s\r\n" % header for header in self.headers if header[0] in _FRAMING_HEADERS]
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
            self.parser.feed_data(data[upgrade.args[0] :])

    def _refuse_framing(self) -> None:
        """The request's body is none; what follows a reply that has been given gets no other."""
        self._num_framing_bytes = 0
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.send_400_response("")

    def eof_received(self) -> None:
        if self.expects_more and not self._replying and not self.transport.is_closing():
            self._in_message = self._in_head = False  # no more of it will come
            self._refuse(HttpError(400, "the request ended before it was complete", code="incomplete_request"))
        super().eof_received()

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self._in_message = True
        self._num_framing_bytes = 0
        if not self._in_head:  # a further request on this connection
            self._num_head_bytes = 1
            self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # nobody wants trailers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head = False
        super().on_headers_complete()
        names = {name for name, _ in self.headers}
        self._awaits_body = self.parser.should_upgrade() and not names.isdisjoint(_FRAMING_HEADERS)

    def on_body(self, body: bytes) -> None:
        self._num_framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._awaits_body:
            return  # the parser's end of what it takes for another protocol's beginning
        self._in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Replaces uvicorn's plain text."""
        if self._replying:
            self.transport.close()  # bytes of another reply cannot be put into the middle of one
        else:
            self._refuse(HttpError(400, "this is not a valid HTTP request", code="invalid_http"))

    def on_response_complete(self) -> None:
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    def _make_room(self) -> None:
        idle = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.is_idle]
        if idle:
            min(idle, key=lambda one: one._idle_since_s).transport.abort()
        elif len(self.connections) > most_connections() + _MOST_REFUSED:
            self.transport.abort()
        else:
            self._in_message = True  # its request is on the way, and is read away
            message = f"{len(self.connections)} connections are all busy, and no more are taken; try again later"
            self._refuse(OverloadedError(message))

    @property
    def is_idle(self) -> bool:
        """Whether no request is here as far as its headers."""
        if self.transport.is_closing():
            return False
        cycle: Any = self.cycle
        return self._in_head if cycle is None else cycle.response_complete and (self._in_head or not self._in_message)

    @property
    def expects_more(self) -> bool:
        """Whether a request has begun that is not complete."""
        return self._in_message or (self._in_head and self._num_head_bytes > 0)

    @property
    def _replying(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _await_head(self) -> None:
        self._in_head = True
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._replying or self.transport.is_closing():
            return
        if not self._num_head_bytes:
            self.transport.close()
            return
        message = f"the headers were not complete after {HEAD_TIMEOUT_S:g} s"
        self._refuse(HttpError(408, message, code="request_timeout"))

    def _refuse(self, error: HttpError | OverloadedError) -> None:
        body = error_json(error)
        status = error.status if isinstance(error, HttpError) else 503
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def _give_up_dead_peers(connected: socket.socket) -> None:
    """Let the system close a connection whose peer neither reads nor answers, where it knows how to (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(UNREAD_TIMEOUT_S))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_TIMEOUT_S * 1000))


class _Body:
    """What a parser tells of a body alone; a further request behind it is not looked at."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_complete = False

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._connection.on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._connection.on_message_complete()


class _Transport:
    """A transport whose `close` lets a client that is still sending read its reply first.

    Closing a socket with unread bytes resets it, and the reply may be lost with it. So for a while what still comes is
    read and thrown away.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Nothing for a client that has been told its last."""
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self.is_closing() or not self._connection.expects_more:
            self._transport.close()
            return
        self._lingers = True
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone meanwhile
                self._transport.write_eof()
        self._transport.resume_reading()
        self._connection.loop.call_later(LINGER_S, self._transport.close)
