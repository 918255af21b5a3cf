"""Which tensors of a safetensors folder are 4-bit matrices, and with which scales beside them.

    NVFP4   weight u8 [out, in/2], weight_scale e4m3 [out, in/16], weight_scale_2 f32: what they are multiplied with
            (quant_method modelopt: NVIDIA Model Optimizer's export, read by vLLM and TensorRT-LLM)
    NVFP4   weight_packed, weight_scale as above, weight_global_scale f32: what they are divided by
            (compressed-tensors, format nvfp4-pack-quantized, of llm-compressor)
    MXFP4   weight_packed or weight u8 [out, in/2], weight_scale u8 or e8m0 [out, in/32]
            (compressed-tensors, format mxfp4-pack-quantized)

Two E2M1 codes a byte, the even column in the low half; scales row by row, not swizzled. Scales of activations and of a
quantized cache are of no use here. Modules without these tensors are as in any checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuserve.checkpoints.safetensors_file import StoredTensor
from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.quant.four_bit_rows import FourBitKind

_METHODS = ("modelopt", "compressed-tensors")
_SCALE, _MULTIPLIER, _DIVISOR = "weight_scale", "weight_scale_2", "weight_global_scale"
_UNUSED = ("input_scale", "input_global_scale", "output_scale", "q_scale", "k_scale", "v_scale")
_UNREAD = ("pre_quant_scale", "weight_zero_point", "weight_g_idx")
_FOLDED = ("weight_input", "weight_output")
"""Where compressed-tensors applied a transform to the weights themselves; elsewhere it is up to who runs the model."""


@dataclass(frozen=True, slots=True)
class FourBitModule:
    """Names of one matrix's tensors; `shape` is (out, in). `divides` tells what `tensor_scale` does."""

    kind: FourBitKind
    shape: tuple[int, int]
    codes: str
    scales: str
    tensor_scale: str | None = None
    divides: bool = False


def refuse_other_methods(config: Mapping[str, Any], path: Path) -> None:
    """UnsupportedModelError for a quantization_config of a method whose tensors are not read here."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return
    quantization = quantization if isinstance(quantization, Mapping) else {}
    method = str(quantization.get("quant_method"))
    if not method.startswith(_METHODS):
        raise UnsupportedModelError(
            f"{path}: quantization_config is of method {method!r}; NVFP4 of {_METHODS[0]} and NVFP4 and MXFP4 of"
            f" {_METHODS[1]} are read, use one of those or the checkpoint in bf16"
        )
    for place in _transforms(quantization.get("transform_config")):
        if place not in _FOLDED:
            raise UnsupportedModelError(
                f"{path}: quantization_config transforms {place!r} while the model runs, which is not supported;"
                " use a checkpoint whose transforms are folded into its weights"
            )


def _transforms(config: Any) -> Iterator[Any]:
    """Where a transform_config of compressed-tensors applies; None for what has another form."""
    groups = config.get("config_groups", {}) if isinstance(config, Mapping) else {}
    for scheme in groups.values() if isinstance(groups, Mapping) else [None]:
        applied = scheme.get("apply") if isinstance(scheme, Mapping) else None
        for entry in applied if isinstance(applied, list) else [None]:
            yield entry.get("location") if isinstance(entry, Mapping) else None


class FourBitModules:
    """The 4-bit matrices among `tensors`, by the name that each would have unquantized (`...weight`).

    Raises CheckpointError for scales that are missing or of another type or shape than their matrix asks for.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], path: Path) -> None:
        self._tensors, self._path = tensors, path
        self.by_name = {f"{stem}.weight": self._module(stem, codes) for stem, codes in self._found()}

    def visible_names(self) -> list[str]:
        """All tensors as if nothing were quantized."""
        if not self.by_name:
            return list(self._tensors)
        beside = {module.codes: name for name, module in self.by_name.items()}
        scales = {name for module in self.by_name.values() for name in (module.scales, module.tensor_scale)}
        return [
            beside.get(name, name)
            for name in self._tensors
            if name not in scales and name.rpartition(".")[2] not in _UNUSED
        ]

    def _found(self) -> Iterator[tuple[str, str]]:
        for name, stored in self._tensors.items():
            stem, _, kind = name.rpartition(".")
            if kind == "weight_packed" or (kind == "weight" and stored.dtype == "U8"):
                yield stem, name

    def _module(self, stem: str, codes: str) -> FourBitModule:
        stored = self._tensors[codes]
        for part in _UNREAD:
            if f"{stem}.{part}" in self._tensors:
                raise UnsupportedModelError(
                    f"{self._path}: {stem}.{part} belongs to a quantization that is not read; NVFP4 and MXFP4 without"
                    " it are"
                )
        if stored.dtype != "U8" or len(stored.shape) != 2:
            raise UnsupportedModelError(
                f"{self._path}: {codes} is packed as {stored.dtype} {list(stored.shape)}; 4-bit floats of a matrix, two"
                " to a byte (U8), are read"
            )
        rows, columns = stored.shape[0], 2 * stored.shape[1]
        tensor_scale = next(
            (name for part in (_MULTIPLIER, _DIVISOR) if (name := f"{stem}.{part}") in self._tensors), None
        )
        kind = self._kind(stem, codes, tensor_scale)
        self._expect(f"{stem}.{_SCALE}", codes, (rows, -(-columns // kind.block_size)))
        if columns % kind.block_size:
            raise self._error(codes, f"has {columns} columns, which are no whole blocks of {kind.block_size}")
        return FourBitModule(
            kind, (rows, columns), codes, f"{stem}.{_SCALE}", tensor_scale, tensor_scale == f"{stem}.{_DIVISOR}"
        )

    def _kind(self, stem: str, codes: str, tensor_scale: str | None) -> FourBitKind:
        if (stored := self._tensors.get(f"{stem}.{_SCALE}")) is None:
            raise self._error(codes, f"has no {stem}.{_SCALE} beside it")
        match stored.dtype:
            case "F8_E4M3":
                if tensor_scale is None:
                    raise self._error(codes, f"has neither {stem}.{_MULTIPLIER} nor {stem}.{_DIVISOR} beside it")
                self._expect(tensor_scale, codes, (1,), "F32")
                return FourBitKind.NVFP4
            case "U8" | "F8_E8M0" if tensor_scale is None:
                return FourBitKind.MXFP4
        wanted = "F8_E4M3 (NVFP4)" if tensor_scale else "F8_E4M3 (NVFP4) or U8 (MXFP4)"
        raise self._error(f"{stem}.{_SCALE}", f"is stored as {stored.dtype}, but must be {wanted}")

    def _expect(self, name: str, codes: str, shape: tuple[int, ...], dtype: str | None = None) -> None:
        stored = self._tensors[name]
        if dtype and stored.dtype != dtype:
            raise self._error(name, f"is stored as {stored.dtype}, but must be {dtype}")
        if stored.shape != shape and not (shape == (1,) and stored.shape == ()):
            raise self._error(
                name,
                f"has shape {list(stored.shape)}, but {codes} of shape {list(self._tensors[codes].shape)} needs"
                f" {list(shape)}",
            )

    def _error(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {name} {what}; fetch the checkpoint again, or one in bf16")
