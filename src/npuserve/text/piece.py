"""What a few tokens add to a reply."""

from typing import NamedTuple

from npuserve.core import TokenLogprob
from npuserve.text.tools.call import CallDelta


class TokenEntry(NamedTuple):
    """A generated token with its log probability; `offset` is where its text begins, in characters of the reply."""

    token: int
    logprob: TokenLogprob
    offset: int


class Piece(NamedTuple):
    """New visible text, reasoning, calls, and the entries of the tokens that they came from."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    entries: tuple[TokenEntry, ...] = ()

    def joined(self, later: "Piece") -> "Piece":
        """This, then `later`."""
        return Piece(
            self.text + later.text,
            self.reasoning + later.reasoning,
            self.calls + later.calls,
            self.entries + later.entries,
        )


NOTHING = Piece()
