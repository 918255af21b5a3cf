"""Telling a model's thoughts from its reply."""

from npuserve.text.tags import TagFinder, Trimmer

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


class ReasoningSplitter:
    """Text between think tags at the beginning of a reply is reasoning, what follows is content; linear in the text.

    White space round the tags belongs to neither. `opened` says that the prompt ends inside the tags already. Tags
    further on are text: only a reply that begins with one thinks.
    """

    def __init__(self, *, opened: bool) -> None:
        self.opened = opened
        self.closed_at: int | None = None  # where the closing tag ends, in characters pushed
        self._num_pushed = 0
        self._before: list[str] | None = None if opened else []
        self._tag = ""
        self._finder = TagFinder([CLOSE_TAG])
        self._thoughts = Trimmer(leading=True)
        self._drops_space = False

    @property
    def thinks(self) -> bool:
        """Whether the closing tag is still to come."""
        return self.opened and self.closed_at is None

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that may be sent now."""
        self._num_pushed += len(text)
        if self._before is not None:
            text = self._begin(text)
        return self._inside(text) if self.thinks else ("", self._content(text))

    def finish(self) -> tuple[str, str]:
        """What was held and is no tag; white space at the end of a thought is dropped."""
        if self.thinks:
            return self._thoughts.push(self._finder.finish()), ""
        held = "" if self._before is None else "".join([*self._before, self._tag])
        self._before = None
        return "", held

    def _begin(self, text: str) -> str:
        """What follows an opening tag, or all text so far when the reply does not begin with one."""
        assert self._before is not None
        if not self._tag:
            rest = text.lstrip()
            self._before.append(text[: len(text) - len(rest)])
            text = rest
        text = self._tag + text
        self._tag = ""
        if text.startswith(OPEN_TAG):
            self.opened, self._before = True, None
            return text[len(OPEN_TAG) :]
        if OPEN_TAG.startswith(text):
            self._tag = text
            return ""
        text = "".join([*self._before, text])
        self._before = None
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        thought, tag, rest = self._finder.push(text)
        thought = self._thoughts.push(thought)
        if tag is None:
            return thought, ""
        self.closed_at = self._num_pushed - len(rest)
        self._drops_space = True
        return thought, self._content(rest)

    def _content(self, text: str) -> str:
        if self._drops_space:
            text = text.lstrip()
            self._drops_space = not text
        return text
