"""Keeps control tokens that a client spelled out from becoming control tokens."""

import re
import secrets
from collections.abc import Iterable
from typing import TypeVar, cast

_Value = TypeVar("_Value")


class Shield:
    """Hides spelled-out control tokens while a chat template is rendered; made anew for each request.

    `hide` puts a placeholder that no client can guess in the place of each one; `restore` undoes it in text that
    will be encoded without control tokens. Content that spells none passes through untouched.
    """

    def __init__(self, control_tokens: "ControlTokens") -> None:
        self._control_tokens = control_tokens
        self._nonce = f"x{secrets.token_hex(8)}x"
        self._hidden: dict[str, str] = {}
        self._placeholder_of: dict[str, str] = {}

    @property
    def used(self) -> bool:
        """Whether anything had to be hidden."""
        return bool(self._hidden)

    def hide(self, value: _Value) -> _Value:
        """`value` with every string in it shielded, lists and dictionaries (keys too) copied."""
        if isinstance(value, str):
            return cast(_Value, self._control_tokens.pattern.sub(self._placeholder, value))
        if isinstance(value, list):
            return cast(_Value, [self.hide(item) for item in value])
        if isinstance(value, dict):
            return cast(_Value, {self.hide(key): self.hide(item) for key, item in value.items()})
        return value

    def restore(self, text: str) -> str:
        """`text` with the spelled-out tokens back in their places."""
        if not self._hidden:
            return text
        return re.sub(self._nonce + r"\d+x", lambda match: self._hidden.get(match[0], match[0]), text)

    def _placeholder(self, match: re.Match[str]) -> str:
        token = match[0]
        placeholder = self._placeholder_of.get(token)
        if placeholder is None:
            placeholder = f"{self._nonce}{len(self._hidden)}x"
            self._placeholder_of[token] = placeholder
            self._hidden[placeholder] = token
        return placeholder


class ControlTokens:
    """The spellings of a tokenizer's control tokens, longest first where one begins another."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted({spelling for spelling in spellings if spelling}, key=lambda s: (-len(s), s))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
