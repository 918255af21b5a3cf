"""A call written as a JSON object with a name and arguments, read character by character."""

import json
import re
from collections.abc import Generator

_SPACE = " \t\n\r"
_ARGUMENTS = ("arguments", "parameters")
_OTHER = ("type", "id")
_MAX_NAME = 256
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# A scanner is sent one character after the other and returns a value when it has read enough of them.
_Scanner = Generator[None, str, str]


class NotACallError(Exception):
    """What was read is not the beginning of a call."""


class JsonCall:
    """Reads one object; `name` is set and arguments flow as soon as both are known to be there.

    From then on it is a call, however it goes on: the text of the arguments object is passed byte for byte, and its
    end is where its brackets close. Arguments given as a JSON string are that string. What cannot become a call has
    `failed`, at its first character of that kind; `names` limits what may be called.
    """

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.name: str | None = None
        self.ended = False
        self.failed = False
        self._names = names
        self._found_name: str | None = None
        self._has_arguments = False
        self._arguments: list[str] = []
        self._scanner = self._object()
        next(self._scanner)

    def feed(self, text: str) -> int:
        """Read `text`; returns how many characters were read, all of them unless the call `ended` or `failed`."""
        send = self._scanner.send
        for at, character in enumerate(text):
            try:
                send(character)
            except StopIteration:
                self.ended = True
                return at + 1
            except NotACallError:
                self.failed = self.name is None
                self.ended = not self.failed
                return at
        return len(text)

    def take_arguments(self) -> str:
        """The arguments' text that came since the last call, none before the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _object(self) -> _Scanner:
        if (yield from _visible()) != "{":
            raise NotACallError
        character = yield from _visible()
        while character != "}":
            if character != '"':
                raise NotACallError
            key = yield from _string(_MAX_NAME)
            if (yield from _visible()) != ":":
                raise NotACallError
            character = yield from self._member(key)
            if character == ",":
                character = yield from _visible()
                if character == "}":
                    raise NotACallError
            elif character != "}":
                raise NotACallError
        if self.name is None:
            if self._found_name is None:
                raise NotACallError
            self._arguments = self._arguments if self._has_arguments else ["{}"]
            self.name = self._found_name
        return ""

    def _member(self, key: str) -> _Scanner:
        """Read a value; returns the first visible character after it."""
        character = yield from _visible()
        if key == "name" and self._found_name is None and character == '"':
            name = yield from _string(_MAX_NAME)
            if not name or (self._names is not None and name not in self._names):
                raise NotACallError
            self._found_name = name
            if self._has_arguments:
                self.name = name
            return (yield from _visible())
        if key in _ARGUMENTS and not self._has_arguments and character in '{"':
            return (yield from self._read_arguments(character))
        if key not in _OTHER and self.name is None:
            raise NotACallError
        return (yield from _skipped(character))

    def _read_arguments(self, character: str) -> _Scanner:
        if character == '"':
            self._arguments.append((yield from _string()))
            self._has_arguments = True
            self.name = self._found_name
            return (yield from _visible())
        self._has_arguments = True
        self.name = self._found_name
        yield from _brackets(self._arguments)
        return (yield from _visible())


def _visible() -> _Scanner:
    while True:
        character = yield
        if character not in _SPACE:
            return character


def _string(most: int | None = None) -> _Scanner:
    """The string whose opening quote was read."""
    literal = ['"']
    escaped = False
    while True:
        character = yield
        literal.append(character)
        if most is not None and len(literal) > most:
            raise NotACallError
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            break
    try:
        return _LONE_SURROGATE.sub("\ufffd", str(json.loads("".join(literal))))
    except ValueError:
        raise NotACallError from None


def _brackets(sink: list[str]) -> Generator[None, str, None]:
    """Copy an object whose opening brace was read to `sink`, up to the brace that closes it."""
    sink.append("{")
    depth, quoted, escaped = 1, False, False
    while depth:
        character = yield
        if escaped:
            escaped = False
        elif quoted:
            escaped = character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        elif character == "<":  # not JSON: the closing tag of a call that was not closed
            raise NotACallError
        sink.append(character)


def _skipped(character: str) -> _Scanner:
    """Read over a short string, which all other members are; returns the first visible character after it."""
    if character != '"':
        raise NotACallError
    yield from _string(_MAX_NAME)
    return (yield from _visible())
