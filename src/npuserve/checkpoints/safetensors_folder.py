"""A checkpoint as Hugging Face folders hold it: config.json, tokenizer.json and safetensors shards."""

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.safetensors_file import SafetensorsFile
from npuserve.checkpoints.tokenizer_folder import TOKENIZER_FILE, TokenizerFolder
from npuserve.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsFolder(TokenizerFolder):
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = self._json("config.json")
        self._shards: dict[str, SafetensorsFile] = {}
        try:
            self._shard_of = self._open_shards()
        except BaseException:
            self.close()
            raise

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        digest.update(json.dumps([self.config, self._tokenizer_config], sort_keys=True).encode())
        digest.update(self._text(TOKENIZER_FILE).encode())
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
