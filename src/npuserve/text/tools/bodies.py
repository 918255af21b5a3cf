"""What stands between the tags of a call: read as it comes, or whole at its end."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from npuserve.text.tags import TagFinder
from npuserve.text.tools.call import ToolCall
from npuserve.text.tools.json_call import JsonCall


class Part(NamedTuple):
    """A call's name, which comes first, or more of its arguments."""

    name: str | None
    arguments: str


class Body(Protocol):
    """The inside of one pair of tags."""

    failed: bool

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        """What `text` gives and, once the body has ended or `failed` to be a call, what is left of it."""

    @property
    def raw(self) -> str:
        """All that was read, for the reply's text in case it is no call."""

    def finish(self) -> bool:
        """Whether a body that was cut here is a call all the same."""


class JsonBody:
    """A JSON object whose arguments flow; `names` limits what may be called."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self.failed = False
        self._call = JsonCall(names)
        self._raw: list[str] = []
        self._named = False

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        """See `Body.feed`."""
        call = self._call
        num_read = call.feed(text)
        parts: list[Part] = []
        if not self._named:
            self._raw.append(text[:num_read])
        if call.failed:
            self.failed = True
            return parts, text[num_read:]
        if call.name is not None and not self._named:
            self._named = True
            self._raw.clear()
            parts.append(Part(call.name, ""))
        arguments = call.take_arguments()
        if arguments:
            parts.append(Part(None, arguments))
        return parts, text[num_read:] if call.ended else None

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def finish(self) -> bool:
        return self._named


class WholeBody:
    """A body that `parse` reads in one piece when `end` was found; None from it is no call."""

    def __init__(self, end: str, parse: Callable[[str], Sequence[ToolCall] | None]) -> None:
        self.failed = False
        self._finder = TagFinder([end])
        self._parse = parse
        self._inside: list[str] = []

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        """See `Body.feed`."""
        inside, tag, rest = self._finder.push(text)
        self._inside.append(inside)
        if tag is None:
            return [], None
        calls = self._parse(self.raw)
        if not calls:
            self.failed = True
            self._inside.append(tag)
            return [], rest
        return [part for call in calls for part in (Part(call.name, ""), Part(None, call.arguments))], rest

    @property
    def raw(self) -> str:
        return "".join(self._inside)

    def finish(self) -> bool:
        self._inside.append(self._finder.finish())
        return False
