"""What stands in for a tokenizer when only the vendor's runtime has one."""

import re

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from npuserve.text.shield import Shield
from npuserve.text.text_ids import MixedTokenBytes, text_id
from npuserve.text.token_bytes import byte_of_character
from npuserve.text.tokenizer import Tokenizer

# What byte-pair tokenizers cut a text into at the coarsest: words with a space before them, digits, signs, space. Their
# number is the estimate of a prompt's tokens until the runtime tells it; a low one, so that no prompt is refused that
# the runtime would have taken.
_PIECES = re.compile(r" ?[^\W\d_]{1,16}|\d{1,3}| ?[^\w\s]{1,4}|\s{1,16}|.", re.DOTALL)


class RuntimeTokenizer(Tokenizer):
    """Text to text ids and back; `markers` are the control tokens that the runtime's tokenizer is known to have.

    A marker that a client spelled out gets a space after its first character, so that the runtime cannot take it for
    a control token; what the chat template writes stays as it is. NUL, which ends a C string, becomes U+FFFD.
    """

    def __init__(self, markers: tuple[str, ...]) -> None:
        super().__init__(_byte_tokenizer(markers))
        self.token_bytes = MixedTokenBytes(self._tokenizer)

    def encode_prompt(self, text: str) -> list[int]:
        """Text ids of a raw prompt, whose markers are meant."""
        return [text_id(piece.encode()) for piece in _PIECES.findall(text.replace("\0", "\ufffd"))]

    def encode_plain(self, text: str) -> list[int]:
        """Text ids of text in which markers are ordinary characters."""
        return self.encode_prompt(self.control_tokens.pattern.sub(_neutralized, text))

    def shield(self) -> Shield:
        """A shield that neutralizes what it finds, for good."""
        return _NeutralizingShield(self.control_tokens)

    def encode_rendered(self, rendered: str, shield: Shield) -> list[int]:
        """Text ids of a rendered chat template whose client strings went through `shield`."""
        return self.encode_prompt(rendered)


class _NeutralizingShield(Shield):
    def _placeholder(self, match: re.Match[str]) -> str:
        return _neutralized(match)


def _neutralized(marker: re.Match[str]) -> str:
    return f"{marker[0][0]} {marker[0][1:]}"


class MixedTokenizer(Tokenizer):
    """A model's own tokenizer, for a runtime whose replies may hold text ids beside token ids."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__(tokenizer)
        self.token_bytes = MixedTokenBytes(tokenizer)


def _byte_tokenizer(markers: tuple[str, ...]) -> tokenizers.Tokenizer:
    """A token for each byte and each marker: enough to know control tokens when they are seen."""
    vocabulary = dict(byte_of_character())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
    return tokenizer
