"""Values written as Python, JSON or Gemma's shorthand, made into JSON text."""

import json
import re

_MAX_DEPTH = 64
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d][\w.\-]*")
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false"} | dict.fromkeys(("None", "null"), "null")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "0": "\0",
    "/": "/",
    "\n": "",
    **{c: c for c in "\\'\""},
}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class LiteralError(Exception):
    """The text is not a value."""


class LiteralReader:
    """Reads values off `text` from `at` on; strings in quotes have escapes, those between `delimiter` are verbatim."""

    def __init__(self, text: str, *, delimiter: str | None = None) -> None:
        self.text = text
        self.at = 0
        self._delimiter = delimiter

    def skip_space(self) -> str:
        """The next visible character, empty at the end."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def take(self, word: str) -> bool:
        """Go past `word` when it is next."""
        self.skip_space()
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def expect(self, word: str) -> None:
        """Go past `word`. Raises LiteralError when it is not next."""
        if not self.take(word):
            raise LiteralError

    def word(self) -> str:
        """A name. Raises LiteralError."""
        self.skip_space()
        return self._matched(_WORD)

    def value(self, depth: int = 0) -> str:
        """JSON text of the next value. Raises LiteralError."""
        first = self.skip_space()
        if depth > _MAX_DEPTH:
            raise LiteralError
        if first == "{":
            return self.members(":", "}", depth)
        if first in ("[", "("):
            return self._items(_CLOSING[first], depth)
        if first in ("'", '"') or self._is_delimited():
            return json.dumps(self._string(), ensure_ascii=False)
        if first.isdigit() or first == "-":
            return self._matched(_NUMBER)
        word = self.word()
        if word not in _WORDS:
            raise LiteralError
        return _WORDS[word]

    def members(self, separator: str, closing: str, depth: int = 0) -> str:
        """JSON text of an object whose opening bracket is next: names or strings, `separator`, values, commas."""
        self.skip_space()
        self.at += 1
        parts: list[str] = []
        while not self.take(closing):
            if parts:
                self.expect(",")
                if self.take(closing):
                    break
            quoted = self.skip_space() in ("'", '"') or self._is_delimited()
            name = self._string() if quoted else self.word()
            self.expect(separator)
            parts.append(f"{json.dumps(name, ensure_ascii=False)}: {self.value(depth + 1)}")
        return "{" + ", ".join(parts) + "}"

    def _items(self, closing: str, depth: int) -> str:
        self.at += 1
        items: list[str] = []
        while not self.take(closing):
            if items:
                self.expect(",")
                if self.take(closing):
                    break
            items.append(self.value(depth + 1))
        return "[" + ", ".join(items) + "]"

    def _is_delimited(self) -> bool:
        return self._delimiter is not None and self.text.startswith(self._delimiter, self.at)

    def _string(self) -> str:
        if self._is_delimited():
            assert self._delimiter is not None
            return self._until(self._delimiter)
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            return _unescaped(self._until(quote * 3))
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise LiteralError
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return _unescaped(inside)

    def _until(self, mark: str) -> str:
        start = self.at + len(mark)
        end = self.text.find(mark, start)
        if end < 0:
            raise LiteralError
        self.at = end + len(mark)
        return self.text[start:end]

    def _matched(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise LiteralError
        self.at = match.end()
        return match[0]


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    joined = _ESCAPE.sub(_character, text)
    joined = _SURROGATES.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), joined)
    return re.sub("[\ud800-\udfff]", "\ufffd", joined)


def _character(match: re.Match[str]) -> str:
    name = match[1]
    if len(name) > 1:
        code = int(name[1:], 16)
        return chr(code) if code <= 0x10FFFF else "\ufffd"
    return _ESCAPED.get(name, match[0])
