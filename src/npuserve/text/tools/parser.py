"""Calls in the text of a reply, found while it is made."""

import secrets
from collections.abc import Callable

from npuserve.text.tags import TagFinder, Trimmer
from npuserve.text.tools.bodies import Body, Part
from npuserve.text.tools.call import CallDelta

# What may stand between two calls without tags.
_SEPARATORS = " \t\n\r;,"


class ToolParser:
    """Takes the calls out of a reply's text, in pieces of any size; the work is linear in the text.

    A call begins with one of the `begins` tags or, with `bare`, with a brace at the beginning of the reply or after
    a call; `make_body` reads it, and `end` is expected after it. White space before and between calls is dropped.
    What cannot be read as a call goes back into the text as it was. Without `parallel` the reply ends with its first
    call.
    """

    def __init__(
        self,
        begins: tuple[str, ...],
        end: str | None,
        make_body: Callable[[], Body],
        *,
        bare: bool = False,
        parallel: bool = True,
    ) -> None:
        self._begins = begins
        self._end = end
        self._make_body = make_body
        self._bare = bare
        self._parallel = parallel
        self._finder = TagFinder(begins)
        self._space = Trimmer(leading=False)
        self._body: Body | None = None
        self._begin = ""
        self._expects_end = False
        self._tail = ""
        self._may_be_bare = bare
        self.num_calls = 0

    @property
    def full(self) -> bool:
        """Whether no more than what was found may follow."""
        return not self._parallel and self.num_calls > 0 and self._body is None and not self._expects_end

    @property
    def inside(self) -> bool:
        """Whether a call is not complete."""
        return self._body is not None

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """(text, calls) that may be sent now."""
        shown: list[str] = []
        calls: list[CallDelta] = []
        rest: str | None = text
        while rest:
            if self.full:
                break
            if self._body is not None:
                rest = self._inside(rest, shown, calls)
            elif self._expects_end:
                rest = self._after(rest)
            elif self._may_be_bare:
                rest = self._bare_begin(rest, shown)
            else:
                rest = self._outside(rest, shown)
        return "".join(shown), calls

    def finish(self) -> str:
        """Text that was held: half a tag, white space at the end, a call that was cut before it was one."""
        if self._body is not None:
            if not self._body.finish():
                held = self._space.finish() + self._begin + self._body.raw
                self._body = None
                return held
            return ""
        if self.full:
            return ""
        visible = self._space.push(self._finder.finish())
        # White space after the last call belongs to nothing.
        return visible if self.num_calls else visible + self._space.finish()

    def _outside(self, text: str, shown: list[str]) -> str | None:
        before, tag, rest = self._finder.push(text)
        shown.append(self._space.push(before))
        if tag is None:
            return None
        self._start(tag)
        return rest

    def _bare_begin(self, text: str, shown: list[str]) -> str | None:
        """Where a call may begin without a tag: at the first visible character."""
        visible = text.lstrip(_SEPARATORS if self.num_calls else None)
        if not self.num_calls:
            self._space.push(text[: len(text) - len(visible)])
        if not visible:
            return None
        self._may_be_bare = False
        if visible[0] == "{":
            self._start("")
        return visible

    def _start(self, tag: str) -> None:
        self._begin = tag
        self._body = self._make_body()

    def _inside(self, text: str, shown: list[str], calls: list[CallDelta]) -> str | None:
        body = self._body
        assert body is not None
        parts, rest = body.feed(text)
        calls += [self._delta(part) for part in (parts if self._parallel else _first_call(parts))]
        if rest is None:
            return None
        self._body = None
        if body.failed:
            shown.append(self._space.push(self._begin + body.raw))
            return rest
        self._space.drop()
        self._expects_end, self._may_be_bare = self._end is not None, self._bare
        return rest

    def _delta(self, part: Part) -> CallDelta:
        if part.name is not None:
            self._space.drop()
            self.num_calls += 1
            return CallDelta(self.num_calls - 1, f"call_{secrets.token_hex(12)}", part.name)
        return CallDelta(self.num_calls - 1, arguments=part.arguments)

    def _after(self, text: str) -> str | None:
        """Expect the closing tag; other text ends the call just as well."""
        assert self._end is not None
        text = self._tail + text if self._tail else text.lstrip()
        self._tail = ""
        if text.startswith(self._end):
            self._expects_end = False
            return text[len(self._end) :]
        if self._end.startswith(text):
            self._tail = text
            return None
        self._expects_end = False
        return text


def _first_call(parts: list[Part]) -> list[Part]:
    """The parts before a second name: a body read as a whole may hold several calls."""
    names = [at for at, part in enumerate(parts) if part.name is not None]
    return parts if len(names) < 2 else parts[: names[1]]
