"""A request's body to plain Python values."""

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from npuserve.errors import RequestError
from npuserve.server.errors import HttpError

MAX_BODY_BYTES = 32 << 20
MAX_NESTING = 64
_LARGE_BODY_BYTES = 1 << 20  # parsed in a thread, so that other streams go on

# One JSON escape: a surrogate pair, a lone surrogate (the group) or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object that the body holds.

    Raises HttpError 413 for more than 32 MB and RequestError for what is not JSON (NaN and Infinity are not), nested
    deeper than 64 or no object. Lone surrogates become U+FFFD.
    """
    body = await _read(request)
    return await asyncio.to_thread(parse_object, body) if len(body) > _LARGE_BODY_BYTES else parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """`read_object` on bytes that are there already."""
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


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large(f"{declared} bytes")
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _too_large("more")
        pieces.append(piece)
    return b"".join(pieces)


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
