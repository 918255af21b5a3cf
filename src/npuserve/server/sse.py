"""A reply sent as server-sent events, or whole; either way given up when the client leaves."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from npuserve.errors import NpuserveError
from npuserve.server.errors import HttpError
from npuserve.server.event_router import Inbox
from npuserve.server.frames import Frames
from npuserve.server.keys import owner_of
from npuserve.server.reply import Reply
from npuserve.server.state import ServerState

_log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
_HEARTBEAT = b": still working\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collected chunks would undo the streaming
]


class ClientGoneError(Exception):
    """The client closed the connection; nobody is left to answer."""


@contextmanager
def watched(receive: Receive, inbox: Inbox) -> Iterator[None]:
    """Fail `inbox` with ClientGoneError when the client leaves inside the block."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        inbox.fail(ClientGoneError())

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()


class RequestTimeoutError(HttpError):
    """The request took longer than the server gives any."""

    def __init__(self, timeout_s: float) -> None:
        message = f"the reply was not complete after {timeout_s:g} s, which is the most that this server gives one"
        super().__init__(408, message, code="request_timeout")


@contextmanager
def attended(request: Request, reply: Reply) -> Iterator[None]:
    """A started reply that others can find and that ends in time; closed when the block ends.

    Fails the reply's inbox with ClientGoneError when the client leaves, RequestTimeoutError at the deadline.
    """
    state: ServerState = request.app.state.server
    timeout_s = state.settings.request_timeout_s
    deadline: asyncio.TimerHandle | None = None
    try:
        if timeout_s:
            error = RequestTimeoutError(timeout_s)
            deadline = asyncio.get_running_loop().call_later(timeout_s, reply.inbox.fail, error)
        with state.live.listed(owner_of(request), reply), watched(request.receive, reply.inbox):
            yield
    finally:
        if deadline is not None:
            deadline.cancel()
        reply.close()


async def whole_reply(request: Request, reply: Reply, frames: Frames) -> Response:
    """Run `reply` to its end and send it in one piece. Raises ClientGoneError, or what the engine failed with."""
    texts: dict[int, list[str]] = {choice.index: [] for choice in reply.choices}
    with attended(request, reply):
        async for deltas in reply.deltas():
            for delta in deltas:
                texts[delta.choice].append(delta.text)
    body = frames.whole(reply.choices, ["".join(texts[choice.index]) for choice in reply.choices])
    return Response(body, media_type="application/json")


class EventStream(Response):
    """A started reply as events: the headers at once, a comment line whenever 10 s pass without anything to send."""

    def __init__(self, reply: Reply, frames: Frames) -> None:
        super().__init__()
        self._reply = reply
        self._frames = frames
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = self._reply
        beat: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()

        def heartbeat() -> None:
            nonlocal beat
            if self._quiet:
                reply.inbox.wake()
            self._quiet = True
            beat = loop.call_later(HEARTBEAT_S, heartbeat)

        try:
            with attended(Request(scope, receive), reply):
                beat = loop.call_later(HEARTBEAT_S, heartbeat)
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                if opening := self._frames.opening():
                    await send({"type": "http.response.body", "body": opening, "more_body": True})
                last = await self._send_deltas(send)
            await send({"type": "http.response.body", "body": last})
        except ClientGoneError:
            pass
        finally:
            if beat is not None:
                beat.cancel()

    async def _send_deltas(self, send: Send) -> bytes:
        """Send all but the last bytes, which are returned: what closes the stream, or the error that broke it."""
        reply, frames = self._reply, self._frames
        try:
            async for deltas in reply.deltas():
                self._quiet = False
                body = b"".join([frames.delta(delta) for delta in deltas])
                if reply.finished:
                    return body + frames.closing(reply.choices)
                await send({"type": "http.response.body", "body": body or _HEARTBEAT, "more_body": True})
        except NpuserveError as error:
            return frames.error(error)
        except ClientGoneError:
            raise
        except Exception as error:
            _log.exception("reply %s broke", reply.id)
            return frames.error(error)
        return frames.closing(reply.choices)
