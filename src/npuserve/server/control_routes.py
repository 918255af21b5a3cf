"""POST /flush_cache and /abort_request: what an operator or a client's own clean-up does to a running server."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from npuserve.core import CacheSource
from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.fields import BOOLEAN, STRING
from npuserve.server.json_reply import json_reply
from npuserve.server.keys import owner_of
from npuserve.server.state import ServerState

_MAX_WAIT_S = 3600.0
_POLL_S = 0.01
ABORT_FIELDS: dict[str, fields.Kind] = {
    "rid": STRING,
    "request_id": STRING,
    "all": BOOLEAN,
    "abort_all": BOOLEAN,
}


async def flush_cache(request: Request) -> Response:
    """Forget saved contexts once no request is alive: 400 while any is, after waiting `?timeout=` seconds."""
    state: ServerState = request.app.state.server
    unknown = request.query_params.keys() - {"timeout", "tier"}
    if unknown:
        name = min(unknown)[:40]
        raise RequestError(f"{name} is not a parameter of this call; it has timeout and tier", param=name)
    give_up_s = time.monotonic() + _timeout_s(request.query_params.get("timeout"))
    tier = _tier(request.query_params.get("tier"))
    # Emptying a disk takes a while: not on the event loop.
    while not await asyncio.to_thread(state.engine.forget_contexts, tier):
        if time.monotonic() >= give_up_s or await request.is_disconnected():
            stats = state.engine.stats()
            message = (
                f"the cache is flushed only while no request runs or waits; running: {stats.num_running}, waiting:"
                f" {stats.num_queued}. Try again later or give ?timeout=SECONDS to wait for that"
            )
            raise RequestError(message, code="server_busy")
        await asyncio.sleep(_POLL_S)
    return json_reply({"success": True, "message": "the saved contexts are forgotten"})


def _tier(text: str | None) -> CacheSource | None:
    if text is None:
        return None
    try:
        return CacheSource(text)
    except ValueError:
        names = ", ".join(source.value for source in CacheSource)
        raise RequestError(
            f"tier must be one of {names}, not '{text[:40]}'", param="tier", code="invalid_value"
        ) from None


def _timeout_s(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MAX_WAIT_S:
        message = f"timeout must be a number of seconds from 0 to {_MAX_WAIT_S:g}, not '{text[:40]}'"
        raise RequestError(message, param="timeout", code="invalid_value")
    return value


async def abort_request(request: Request) -> Response:
    """End the client's own requests: one by `rid` (its own name for it or the reply's id), or `all`."""
    state: ServerState = request.app.state.server
    values = fields.read(await read_object(request), ABORT_FIELDS)
    name = values.get("rid", values.get("request_id"))
    everything = values.get("all", False) or values.get("abort_all", False)
    if not everything and not name:
        raise RequestError("rid is missing; give it, or all: true", param="rid", code="missing_field")
    replies = state.live.find(owner_of(request), None if everything else name)
    for reply in replies:
        for choice in reply.choices:
            state.engine.cancel(choice.request_id)
    return json_reply({"success": True, "aborted": len(replies)})
