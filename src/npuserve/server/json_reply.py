"""A value as a JSON reply."""

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


def json_reply(value: object, status: int = 200) -> Response:
    """`value`, of plain types or wire types, as the whole reply."""
    return Response(_encode(value), status, media_type="application/json")
