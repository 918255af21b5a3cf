"""Text in the place of token ids, for runtimes that keep their tokenizer to themselves.

The engine's vocabulary carries token ids. A text id is an integer that is its own text, with the token's real id, where
the runtime told one, in its low half: it is above every real token id, and nobody has to remember it.
"""

from collections.abc import Iterable, Sequence

import tokenizers

from npuserve.text.token_bytes import TokenBytes

# Real token ids are 32-bit integers.
_FIRST = 1 << 32


def text_id(text: bytes, token_id: int = 0) -> int:
    """The id that stands for `text`, which is what the token `token_id` gave; -1 where that is not known."""
    return int.from_bytes(b"\x01" + text, "big") * _FIRST + max(token_id, 0)


def real_ids(token_ids: Sequence[int]) -> Sequence[int]:
    """The same with real ids in the place of text ids, as clients may see them."""
    return [token_id % _FIRST for token_id in token_ids]


def text_of(token_id: int) -> bytes | None:
    """The text of a text id, None for a token's."""
    if token_id < _FIRST:
        return None
    number = token_id // _FIRST
    return number.to_bytes((number.bit_length() + 7) // 8, "big")[1:]


def joined_text(token_ids: Iterable[int]) -> bytes | None:
    """The text of a sequence of text ids, None when a token's id is among them."""
    texts = [text_of(token_id) for token_id in token_ids]
    known = [text for text in texts if text is not None]
    return b"".join(known) if len(known) == len(texts) else None


class MixedTokenBytes(TokenBytes):
    """The bytes of token ids and of text ids."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__(tokenizer)
        # What the runtime says needs no repair: its own tokenizer has taken the leading space away, or has not.
        self.strips_leading_space = False

    def __getitem__(self, token_id: int) -> bytes:
        """As the base class; a text id's bytes are its text."""
        text = text_of(token_id)
        return super().__getitem__(token_id) if text is None else text
