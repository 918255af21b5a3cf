"""A reply sent as server-sent events, or whole; either way given up when the client leaves."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from npuserve.errors import NpuserveError
from npuserve.server.errors import error_json
from npuserve.server.event_router import Inbox
from npuserve.server.frames import Frames
from npuserve.server.reply import Reply

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


async def whole_reply(request: Request, reply: Reply, frames: Frames) -> Response:
    """Run `reply` to its end and send it in one piece. Raises ClientGoneError, or what the engine failed with."""
    texts: dict[int, list[str]] = {choice.index: [] for choice in reply.choices}
    try:
        with watched(request.receive, reply.inbox):
            async for deltas in reply.deltas():
                for delta in deltas:
                    texts[delta.choice].append(delta.text)
    finally:
        reply.close()
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
            beat = loop.call_later(HEARTBEAT_S, heartbeat)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            with watched(receive, reply.inbox):
                last = await self._send_deltas(send)
            await send({"type": "http.response.body", "body": last})
        except ClientGoneError:
            pass
        finally:
            if beat is not None:
                beat.cancel()
            reply.close()

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
            return b"data: " + error_json(error) + b"\n\n"
        except ClientGoneError:
            raise
        except Exception as error:
            _log.exception("reply %s broke", reply.id)
            return b"data: " + error_json(error) + b"\n\n"
        return frames.closing(reply.choices)
