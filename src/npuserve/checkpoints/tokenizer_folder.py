"""A tokenizer as Hugging Face folders hold it, with its chat template and special tokens."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from npuserve.checkpoints.special_tokens import SpecialTokens, stop_ids
from npuserve.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_JSON_BYTES = 256 << 20
TOKENIZER_FILE = "tokenizer.json"


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class TokenizerFolder:
    """The text side of a checkpoint; see `Checkpoint` for the contracts. Only tokenizer.json must be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.config: Mapping[str, Any] = self._json("config.json", optional=True)
        self.generation_config: Mapping[str, Any] = self._json("generation_config.json", optional=True)
        self._tokenizer_config = self._json("tokenizer_config.json", optional=True)

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        added = self._added_tokens()
        ids = {token.content: token.id for token in added}
        bos, eos, pad = (self._named_token(key) for key in ("bos_token", "eos_token", "pad_token"))
        bos_id, eos_id, pad_id = (None if token is None else ids.get(token) for token in (bos, eos, pad))
        named = [source.get("eos_token_id") for source in (self.generation_config, self.config)]
        ends = {i for value in named for i in (value if isinstance(value, list) else [value]) if type(i) is int}
        special = {token.content: token.id for token in added if token.special}
        stops = stop_ids(ends if eos_id is None else ends | {eos_id}, special.get)
        return SpecialTokens(bos, bos_id, eos, eos_id, pad, pad_id, stops)

    @cached_property
    def chat_template(self) -> str | None:
        if (self.path / "chat_template.jinja").is_file():
            return self._text("chat_template.jinja")
        template = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        text = self._text(TOKENIZER_FILE)
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower class
            raise CheckpointError(f"{self.path / TOKENIZER_FILE}: not a tokenizer ({error}); fetch it again") from error

    def _added_tokens(self) -> list[_AddedToken]:
        """Read past the vocabulary, which takes the tokenizers library many times longer."""
        try:
            return msgspec.json.decode(self._text(TOKENIZER_FILE), type=_TokenizerFile).added_tokens
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CheckpointError(f"{self.path / TOKENIZER_FILE}: not a tokenizer ({error}); fetch it again") from error

    def _named_token(self, key: str) -> str | None:
        """tokenizer_config.json gives a token as a string or as an AddedToken's fields."""
        token = self._tokenizer_config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def _json(self, name: str, *, optional: bool = False) -> dict[str, Any]:
        if optional and not (self.path / name).exists():
            return {}
        try:
            value = json.loads(self._text(name))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / name}: not JSON ({error}); fetch it again") from error
        if not isinstance(value, dict):
            raise CheckpointError(
                f"{self.path / name}: holds {type(value).__name__}, not a JSON object; fetch it again"
            )
        return value

    def _text(self, name: str) -> str:
        path = self.path / name
        try:
            if (size_bytes := path.stat().st_size) > _MAX_JSON_BYTES:
                raise CheckpointError(f"{path}: {size_bytes} bytes is larger than {_MAX_JSON_BYTES}; this is no {name}")
            return path.read_text("utf-8")
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path}: is missing; give a folder with config.json, tokenizer.json and weights"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: is not UTF-8 text; fetch it again") from error
