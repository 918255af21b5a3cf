"""A request's body to plain Python values."""

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from npuserve.errors import OverloadedError, RequestError
from npuserve.server.errors import HttpError

MAX_BODY_BYTES = 32 << 20
MAX_NESTING = 64
# Bounds of what one body may make of itself in memory: objects and lists, keys, and values in all.
MAX_CONTAINERS = 100_000
MAX_KEYS = 200_000
MAX_VALUES = 2_000_000
_LARGE_BODY_BYTES = 64 << 10  # parsed in a thread, so that other streams go on
# What all requests together may have sent of bodies that are not complete.
MAX_PENDING_BYTES = 512 << 20
# A body has to come: so long for a piece of it, so long for all.
PIECE_TIMEOUT_S = 30.0
BODY_TIMEOUT_S = 300.0

# An escaped backslash, a surrogate pair, or a lone surrogate (the group).
_ESCAPE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class PendingBodies:
    """How many bytes of incomplete bodies are held, of all requests together."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Note more of a body. Raises OverloadedError when there is no room for it."""
        if self.size_bytes + size_bytes > MAX_PENDING_BYTES:
            raise OverloadedError(
                f"requests that are being received hold {self.size_bytes} bytes, and at most {MAX_PENDING_BYTES} are"
                " taken; send the request again later"
            )
        self.size_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Note that a body is complete, or will never be."""
        self.size_bytes -= size_bytes


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object that the body holds.

    Raises HttpError 413 for more than 32 MB, 408 when it does not come, and RequestError for what is not JSON (NaN and
    Infinity are not), nested deeper than 64, of too many parts or no object. Lone surrogates become U+FFFD.
    """
    body = await read_bytes(request)
    return await asyncio.to_thread(parse_object, body) if len(body) > _LARGE_BODY_BYTES else parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """`read_object` on bytes that are there already."""
    _check_counts(body)
    if _SURROGATE.search(body):
        body = _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], body)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error).partition(" - at ")[0]
        raise RequestError(f"the body is not valid JSON: {reason}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    _check_nesting(value)
    return value


async def read_bytes(request: Request) -> bytes:
    """The whole body. Raises HttpError 413 for more than 32 MB and 408 when it does not come; OverloadedError."""
    pending: PendingBodies = request.app.state.server.pending_bodies
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large(f"{declared} bytes")
    pieces: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    end_s = loop.time() + BODY_TIMEOUT_S
    try:
        async with asyncio.timeout(PIECE_TIMEOUT_S) as patience:
            async for piece in request.stream():
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise _too_large("more")
                pending.add(len(piece))
                pieces.append(piece)
                patience.reschedule(min(loop.time() + PIECE_TIMEOUT_S, end_s))
    except TimeoutError:
        message = f"the body did not come: {size} bytes are here; send it without pauses"
        raise HttpError(408, message, code="request_timeout", headers={"Connection": "close"}) from None
    finally:
        pending.remove(sum(map(len, pieces)))
    return b"".join(pieces)


def _check_counts(body: bytes) -> None:
    """Raise RequestError for a body of too many parts, before any of them is made."""
    if _fits(body):
        return
    # Some of what was counted may stand in strings, which are cut out.
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 2 * MAX_VALUES or not _fits(b"".join(bare.split(b'"')[::2])):
        raise RequestError(
            f"the body has more than {MAX_CONTAINERS} objects and lists, {MAX_KEYS} keys or {MAX_VALUES} values;"
            " send less in one request",
            code="invalid_json",
        )


def _fits(text: bytes) -> bool:
    return (
        text.count(b"{") + text.count(b"[") <= MAX_CONTAINERS
        and text.count(b":") <= MAX_KEYS
        and text.count(b",") <= MAX_VALUES
    )


def _too_large(size: str) -> HttpError:
    message = f"the body has {size}; at most {MAX_BODY_BYTES} bytes are taken"
    # What is left of the body is not read, so the connection cannot carry another request.
    return HttpError(413, message, code="request_too_large", headers={"Connection": "close"})


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_NESTING} levels", code="invalid_json")


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep()
