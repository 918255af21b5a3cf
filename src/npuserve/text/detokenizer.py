"""Token ids to text, a few at a time."""

import codecs
from collections.abc import Iterable, Set

from npuserve.text.token_bytes import TokenBytes


class Detokenizer:
    """Turns the ids of one reply into text as they come; the work is linear in the bytes.

    Bytes of a character that is not complete yet are held. What never becomes a character is U+FFFD, one for each
    longest beginning of one (Unicode 3.9, U+FFFD substitution of maximal subparts), so that the pieces joined
    equal the decoding of all bytes at once. Ids in `skipped` give no text.
    """

    def __init__(
        self, token_bytes: TokenBytes, *, skipped: Set[int] = frozenset(), strip_leading_space: bool = False
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._strip_leading_space = strip_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode

    @property
    def is_inside_character(self) -> bool:
        """Whether the bytes so far end in a character that is not complete."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that `token_ids` complete."""
        table, skipped = self._token_bytes, self._skipped
        return self._shown(self._decode(b"".join([table[i] for i in token_ids if i not in skipped])))

    def whole(self, token_ids: Iterable[int]) -> str:
        """Text of a complete sequence."""
        return self.push(token_ids) + self.finish()

    def finish(self) -> str:
        """U+FFFD for a character whose end never came."""
        return self._shown(self._decode(b"", True))

    def _shown(self, text: str) -> str:
        if self._strip_leading_space and text:
            self._strip_leading_space = False
            return text.removeprefix(" ")
        return text
