"""A checkpoint in one GGUF file: quantized weights, configuration and tokenizer together."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints import gguf_four_bit
from npuserve.checkpoints.gguf_config import hugging_face_name, translate_config, translate_generation_config
from npuserve.checkpoints.gguf_header import TensorInfo, read_header
from npuserve.checkpoints.gguf_tokenizer import GgufVocabulary
from npuserve.checkpoints.mapped_file import MappedFile
from npuserve.checkpoints.special_tokens import SpecialTokens
from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.quant.four_bit_rows import FourBitKind, FourBitRows, is_tensor_scale, scales_are_finite

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LLAMA_ROPE_FACTORS = "rope_freqs.weight"
_PAIRED = tuple(f".self_attn.{part}_proj.{kind}" for part in "qk" for kind in ("weight", "bias"))


class GgufFile:
    """See `Checkpoint`."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.stem
        self._file = MappedFile(path)
        try:
            self._header = read_header(self._file)
            self._tensors = self._named()
            self.config: Mapping[str, Any] = self._read_config()
        except BaseException:
            self._file.close()
            raise
        self.generation_config: Mapping[str, Any] = translate_generation_config(self._header.metadata)

    @cached_property
    def _vocabulary(self) -> GgufVocabulary:
        return GgufVocabulary(self._header.metadata, self.path)

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        return self._vocabulary.special_tokens()

    @property
    def chat_template(self) -> str | None:
        template = self._header.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        digest.update(self._file.read(0, self._header.size_bytes))
        digest.update(f"{self._file.size_bytes} {self._file.mtime_ns}".encode())
        digest.update(self._file.samples())
        return digest.hexdigest()

    def tensor_names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        return self.tensor_rows(name, 0, self.shape(name)[0])

    def tensor_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        info = self._info(name)
        if not 0 <= start <= stop <= info.shape[0]:
            raise ValueError(f"rows {start}..{stop} of {name}, which has {info.shape[0]}")
        if len(info.shape) == 2 and info.block.name in gguf_four_bit.KINDS:
            return self.four_bit_rows(name, start, stop).dequantized()
        stored = self._stored(info)
        if len(info.shape) == 1:
            return self._dequantize(info, stored).reshape(info.shape)[self._row_order(name, start, stop)].copy()
        rows = stored.reshape(info.shape[0], -1)[self._row_order(name, start, stop)]
        return self._dequantize(info, rows).reshape(stop - start, *info.shape[1:])

    def four_bit_kind(self, name: str) -> FourBitKind | None:
        info = self._info(name)
        return gguf_four_bit.KINDS.get(info.block.name) if len(info.shape) == 2 else None

    def four_bit_scales(self, name: str) -> NDArray[np.uint8]:
        info = self._info(name)
        rows = self._stored(info).reshape(info.shape[0], -1)
        return gguf_four_bit.scales(rows, gguf_four_bit.KINDS[info.block.name])

    def four_bit_rows(self, name: str, start: int, stop: int) -> FourBitRows:
        info = self._info(name)
        kind = gguf_four_bit.KINDS[info.block.name]
        rows = self._stored(info).reshape(info.shape[0], -1)[self._row_order(name, start, stop)]
        scales = gguf_four_bit.scales(rows, kind)
        if not scales_are_finite(kind, scales) or (kind is FourBitKind.NVFP4 and (scales > 0x7F).any()):
            raise CheckpointError(f"{self.path}: {info.name} holds a block scale that cannot be; fetch the file again")
        tensor_scale = np.full(stop - start, self._tensor_scale(info), np.float32)
        return FourBitRows(kind, gguf_four_bit.codes(rows, kind), scales, tensor_scale)

    def tokenizer(self) -> "Tokenizer":
        return self._vocabulary.build()

    def close(self) -> None:
        self._file.close()

    def _named(self) -> dict[str, TensorInfo]:
        architecture = self._header.metadata.get("general.architecture")
        return {
            hugging_face_name(name, architecture): info
            for name, info in self._header.tensors.items()
            if name != _LLAMA_ROPE_FACTORS and not self._is_scale(name)
        }

    def _is_scale(self, name: str) -> bool:
        stem, _, kind = name.rpartition(".")
        beside = self._header.tensors.get(f"{stem}.weight")
        return kind in gguf_four_bit.BESIDE and beside is not None and beside.block.name == FourBitKind.NVFP4.name

    def _read_config(self) -> dict[str, Any]:
        """Llama 3 files carry their RoPE factors as a tensor; in Hugging Face terms that is LongRoPE with one list.

        Gemma 4 files have huge factors for the pairs of a global head that do not turn.
        """
        config = translate_config(self._header, self.path)
        info = self._header.tensors.get(_LLAMA_ROPE_FACTORS)
        if info is not None and config["model_type"] == "gemma4_text":
            turning = self._dequantize(info, self._stored(info)).ravel() == 1
            config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = float(turning.mean())
        elif info is not None:
            factors = self._dequantize(info, self._stored(info)).ravel().tolist()
            config["rope_scaling"] = {
                "rope_type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
                "attention_factor": 1.0,
                "original_max_position_embeddings": config["max_position_embeddings"],
            }
        return config

    def _info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: has no tensor {name!r} (it has {len(self._tensors)}); fetch it again")
        return self._tensors[name]

    def _tensor_scale(self, info: TensorInfo) -> float:
        """What an NVFP4 tensor is multiplied with as a whole; 1 where the file says nothing."""
        name = info.name.removesuffix("weight") + "scale"
        beside = self._header.tensors.get(name)
        if info.block.name != FourBitKind.NVFP4.name or beside is None:
            return 1.0
        if beside.block.name != "F32" or beside.shape != (1,):
            raise CheckpointError(
                f"{self.path}: {name} is {beside.block.name} {list(beside.shape)}, not one F32; fetch the file again"
            )
        scale = float(self._dequantize(beside, self._stored(beside)).ravel()[0])
        if not is_tensor_scale(scale):
            raise CheckpointError(
                f"{self.path}: {name} is {scale:g}, which is no scale of weights; fetch the file again"
            )
        return scale

    def _stored(self, info: TensorInfo) -> NDArray[np.uint8]:
        return np.frombuffer(self._file.view(info.offset, info.size_bytes), np.uint8)

    def _row_order(self, name: str, start: int, stop: int) -> slice | NDArray[np.intp]:
        """Where rows start..stop-1 are stored.

        The converter to GGUF interleaves the two RoPE halves of every q and k head of a Llama: Hugging Face's row
        h*D + a*D/2 + i (a = 0, 1) is stored as row h*D + 2*i + a, where D is the head dimension.
        """
        if self.config["model_type"] != "llama" or not name.endswith(_PAIRED):
            return slice(start, stop)
        head_dim = self.config["head_dim"]
        if self._info(name).shape[0] % head_dim:
            raise CheckpointError(f"{self.path}: {name} of shape {self.shape(name)} is not whole heads of {head_dim}")
        head, inside = np.divmod(np.arange(start, stop), head_dim)
        half, pair = np.divmod(inside, head_dim // 2)
        return np.asarray(head * head_dim + 2 * pair + half, np.intp)

    def _dequantize(self, info: TensorInfo, stored: NDArray[np.uint8]) -> NDArray[np.float32]:
        """float32, fresh; `stored` is whole rows."""
        from gguf import quants
        from gguf.constants import GGMLQuantizationType

        if info.block.name == "F32":
            return np.array(stored, copy=True).view(np.float32)
        try:
            with np.errstate(all="ignore"):
                values = quants.dequantize(np.ascontiguousarray(stored), GGMLQuantizationType(info.block.number))
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(
                f"{self.path}: tensor {info.name!r} is stored as {info.block.name}, which the gguf package does not"
                " unpack; use a file of another quantization"
            ) from error
        return np.asarray(values, np.float32)
