"""Function calls as a reply's text gives them."""

from typing import NamedTuple


class CallDelta(NamedTuple):
    """News of one call of a reply, counted from 0: first its id and name, then its arguments' text in pieces."""

    number: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ToolCall(NamedTuple):
    """A whole call; `arguments` is JSON text, byte for byte the model's where that wrote JSON."""

    name: str
    arguments: str
