"""The replies in the making, by whose they are and what their clients call them."""

from collections.abc import Iterator
from contextlib import contextmanager

from npuserve.server.errors import HttpError
from npuserve.server.reply import Reply


class LiveReplies:
    """Replies found by their owner and by their own id or the client's name (rid); belongs to the event loop."""

    def __init__(self) -> None:
        self._replies: dict[str, tuple[str, Reply]] = {}

    @contextmanager
    def listed(self, owner: str, reply: Reply) -> Iterator[None]:
        """Found inside the block."""
        self._replies[reply.id] = owner, reply
        try:
            yield
        finally:
            del self._replies[reply.id]

    def find(self, owner: str, name: str | None = None) -> list[Reply]:
        """The owner's reply of that name, all of the owner's for None."""
        own = [reply for whose, reply in self._replies.values() if whose == owner]
        return own if name is None else [reply for reply in own if name in (reply.id, reply.name)]

    def check_free(self, owner: str, name: str | None) -> None:
        """Raise HttpError 409 when a reply of the owner's has that name."""
        if name is not None and self.find(owner, name):
            raise HttpError(409, f"a request with rid '{name[:64]}' is still running", code="duplicate_rid")
