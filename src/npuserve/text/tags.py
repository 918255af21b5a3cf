"""Finding tags in text that comes in pieces, and keeping back white space until it is known what follows."""

from collections.abc import Sequence


class TagFinder:
    """Looks for the first of `tags`; what may be the beginning of one is held, never more than a tag's length."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tuple(tags)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """(text before the tag, the tag, what follows), or (text that holds none, None, "").

        A tag that begins earlier wins. The finder is as new after a tag was found.
        """
        text = self._held + text
        self._held = ""
        found = min(((at, tag) for tag in self._tags if (at := text.find(tag)) >= 0), default=None)
        if found is not None:
            at, tag = found
            return text[:at], tag, text[at + len(tag) :]
        held = max((_overlap(text, tag) for tag in self._tags), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None, ""

    def finish(self) -> str:
        """Held text that turned out to be no tag."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


class Trimmer:
    """Keeps back white space at the end of text; with `leading` it drops that at the beginning."""

    def __init__(self, *, leading: bool) -> None:
        self._drops = leading
        self._space: list[str] = []

    def push(self, text: str) -> str:
        """`text` up to its last visible character, after the white space that was held before it."""
        if self._drops:
            text = text.lstrip()
            self._drops = not text
        visible = text.rstrip()
        if not visible:
            if text:
                self._space.append(text)
            return ""
        shown = "".join([*self._space, visible])
        self._space = [text[len(visible) :]] if len(visible) < len(text) else []
        return shown

    def drop(self) -> None:
        """Forget the white space that is held."""
        self._space = []

    def finish(self) -> str:
        """The white space that is held."""
        space = "".join(self._space)
        self._space = []
        return space
