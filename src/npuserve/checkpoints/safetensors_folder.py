"""A checkpoint as Hugging Face folders hold it: config.json, tokenizer.json and safetensors shards."""

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.four_bit_modules import FourBitModules, refuse_other_methods
from npuserve.checkpoints.safetensors_file import SafetensorsFile
from npuserve.checkpoints.tokenizer_folder import TOKENIZER_FILE, TokenizerFolder
from npuserve.errors import CheckpointError
from npuserve.quant.four_bit_rows import FourBitKind, FourBitRows, is_tensor_scale, scales_are_finite

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsFolder(TokenizerFolder):
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = self._json("config.json")
        refuse_other_methods(self.config, path)
        self._shards: dict[str, SafetensorsFile] = {}
        try:
            self._shard_of = self._open_shards()
            tensors = {name: self._shards[shard].tensors[name] for name, shard in self._shard_of.items()}
            self._modules = FourBitModules(tensors, path)
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
        return self._modules.visible_names()

    def shape(self, name: str) -> tuple[int, ...]:
        if module := self._modules.by_name.get(name):
            return module.shape
        return self._shard(name).tensors[name].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        shape = self.shape(name)
        return self._rows(name, 0, shape[0] if shape else 1)

    def tensor_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        self._check_rows(name, start, stop)
        return self._rows(name, start, stop)

    def four_bit_kind(self, name: str) -> FourBitKind | None:
        module = self._modules.by_name.get(name)
        return module.kind if module else None

    def four_bit_scales(self, name: str) -> NDArray[np.uint8]:
        module = self._modules.by_name[name]
        return self._shard(module.scales).row_bytes(module.scales, 0, module.shape[0])

    def four_bit_rows(self, name: str, start: int, stop: int) -> FourBitRows:
        self._check_rows(name, start, stop)
        module = self._modules.by_name[name]
        codes, scales = (self._shard(part).row_bytes(part, start, stop) for part in (module.codes, module.scales))
        if not scales_are_finite(module.kind, scales):
            raise self._damaged(module.scales, "holds a scale that is not finite")
        tensor_scale = self._tensor_scale(module.tensor_scale, divides=module.divides) if module.tensor_scale else 1
        return FourBitRows(module.kind, codes, scales, np.full(stop - start, tensor_scale, np.float32))

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        if name in self._modules.by_name:
            return self.four_bit_rows(name, start, stop).dequantized()
        return self._shard(name).rows(name, start, stop)

    def _check_rows(self, name: str, start: int, stop: int) -> None:
        num_rows = self.shape(name)[0]
        if not 0 <= start <= stop <= num_rows:
            raise ValueError(f"rows {start}..{stop} of {name}, which has {num_rows}")

    def _tensor_scale(self, name: str, *, divides: bool) -> np.float32:
        """What all of an NVFP4 tensor is multiplied with; a divisor's inverse is rounded once."""
        scale = float(self._shard(name).rows(name, 0, 1).ravel()[0])
        if divides and scale:
            scale = 1 / scale
        if (divides and not scale) or not is_tensor_scale(scale):
            raise self._damaged(name, f"is {scale:g}, which is no scale of weights")
        return np.float32(scale)

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name} {what}; fetch the checkpoint again, or one in bf16")

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
