"""The bytes that each token id stands for, read off the tokenizer's decoder."""

import json
from functools import cache
from typing import Any

import tokenizers

from npuserve.errors import UnsupportedModelError

_SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character


@cache
def byte_of_character() -> dict[str, int]:
    """The byte-level BPE alphabet, turned round: character -> byte.

    Printable Latin-1 bytes stand for themselves; the other 68, in ascending order, are the characters from
    U+0100 on (Radford et al. 2019, the GPT-2 encoder).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
    return alphabet


def byte_level(piece: str) -> bytes:
    """Bytes of a byte-level piece; one with a character outside the alphabet is an added token, written as it is."""
    alphabet = byte_of_character()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode()


def byte_fallback(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: `<0xE4>` is one byte, the space mark a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace(_SPACE_MARK, " ").encode()


class TokenBytes:
    """Token id -> bytes, worked out when first asked for; the whole of a big vocabulary would delay the start.

    Raises UnsupportedModelError for a decoder that is neither byte-level nor SentencePiece-like: in such a one
    (WordPiece) the text of a token depends on its neighbours.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = _decoder_kinds(tokenizer)
        if "ByteLevel" in kinds:
            self._convert = byte_level
        elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
            self._convert = byte_fallback
        else:
            found = ", ".join(sorted(kinds)) or "none"
            raise UnsupportedModelError(
                f"the tokenizer's decoder ({found}) is neither byte-level nor SentencePiece-like"
            )
        self.strips_leading_space = bool(kinds & {"Strip", "Metaspace"})
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of one token; none for an id that the tokenizer does not have (padding of the vocabulary)."""
        known = self._known.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = b"" if piece is None else self._convert(piece)
            self._known[token_id] = known
        return known


def _decoder_kinds(tokenizer: tokenizers.Tokenizer) -> set[str]:
    if tokenizer.decoder is None:
        return set()
    description: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    parts = description["decoders"] if description["type"] == "Sequence" else [description]
    return {part["type"] for part in parts}
