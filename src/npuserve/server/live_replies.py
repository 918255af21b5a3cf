"""The replies in the making, by whose they are and what their clients call them."""

from collections.abc import Iterator
from contextlib import contextmanager

from npuserve.server.errors import HttpError
from npuserve.server.reply import Reply


class LiveReplies:
    """Replies found by their owner and by their own id or the client's (rid); belongs to the event loop."""

    def __init__(self) -> None:
        self._replies: dict[tuple[str, str], Reply] = {}

    @contextmanager
    def listed(self, owner: str, name: str, reply: Reply) -> Iterator[None]:
        """Known as `name` inside the block. Raises HttpError 409 for a name in use."""
        key = owner, name
        if key in self._replies:
            raise HttpError(409, f"a request with rid '{name[:64]}' is still running", code="duplicate_rid")
        self._replies[key] = reply
        try:
            yield
        finally:
            del self._replies[key]

    def find(self, owner: str, name: str | None = None) -> list[Reply]:
        """The owner's reply of that name, all of the owner's for None."""
        named = [
            reply for (whose, known_as), reply in self._replies.items() if whose == owner and name in (None, known_as)
        ]
        return list({id(reply): reply for reply in named}.values())
