"""A checkpoint as Hugging Face folders hold it: config.json, tokenizer.json and safetensors shards."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.safetensors_file import SafetensorsFile
from npuserve.checkpoints.special_tokens import SpecialTokens, stop_ids
from npuserve.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_JSON_BYTES = 256 << 20
_TOKENIZER = "tokenizer.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class SafetensorsFolder:
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.config: Mapping[str, Any] = self._json("config.json")
        self.generation_config: Mapping[str, Any] = self._json("generation_config.json", optional=True)
        self._tokenizer_config = self._json("tokenizer_config.json", optional=True)
        self._shards: dict[str, SafetensorsFile] = {}
        try:
            self._shard_of = self._open_shards()
        except BaseException:
            self.close()
            raise

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

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        digest.update(json.dumps([self.config, self._tokenizer_config], sort_keys=True).encode())
        digest.update(self._text(_TOKENIZER).encode())
        for name, shard in sorted(self._shards.items()):
            digest.update(name.encode() + b"\0" + shard.identity())
        return digest.hexdigest()

    def tensor_names(self) -> Sequence[str]:
        return list(self._shard_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shard(name).tensors[name].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        shape = self.shape(name)
        return self._shard(name).rows(name, 0, shape[0] if shape else 1)

    def tensor_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        num_rows = self.shape(name)[0]
        if not 0 <= start <= stop <= num_rows:
            raise ValueError(f"rows {start}..{stop} of {name}, which has {num_rows}")
        return self._shard(name).rows(name, start, stop)

    def tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        text = self._text(_TOKENIZER)
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower class
            raise CheckpointError(f"{self.path / _TOKENIZER}: not a tokenizer ({error}); fetch it again") from error

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _open_shards(self) -> dict[str, str]:
        """Which shard holds each tensor; opens all of them."""
        if not (self.path / _INDEX).is_file():
            self._shards[_SINGLE] = SafetensorsFile(self.path / _SINGLE)
            return dict.fromkeys(self._shards[_SINGLE].tensors, _SINGLE)
        shard_of = self._json(_INDEX).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise CheckpointError(f"{self.path / _INDEX}: weight_map is not an object of file names; fetch it again")
        for shard in sorted(set(shard_of.values())):
            if Path(shard).name != shard or shard in ("", ".", ".."):
                raise CheckpointError(f"{self.path / _INDEX}: shard {shard!r} is not a plain file name in this folder")
            self._shards[shard] = SafetensorsFile(self.path / shard)
        for name, shard in shard_of.items():
            if name not in self._shards[shard].tensors:
                raise CheckpointError(
                    f"{self.path / shard}: has no tensor {name!r}, which {_INDEX} puts there; fetch it again"
                )
        return shard_of

    def _shard(self, name: str) -> SafetensorsFile:
        if name not in self._shard_of:
            raise CheckpointError(f"{self.path}: has no tensor {name!r} (it has {len(self._shard_of)}); fetch it again")
        return self._shards[self._shard_of[name]]

    def _added_tokens(self) -> list[_AddedToken]:
        """Read past the vocabulary, which takes the tokenizers library many times longer."""
        try:
            return msgspec.json.decode(self._text(_TOKENIZER), type=_TokenizerFile).added_tokens
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CheckpointError(f"{self.path / _TOKENIZER}: not a tokenizer ({error}); fetch it again") from error

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
