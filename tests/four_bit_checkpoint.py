"""Checkpoints of 4-bit floats as the public tools write them, made without those tools.

Codes and scales are drawn or quantized here with tables of this file, and `values` dequantizes in float64, so that a
test holds the reader against something that shares nothing with it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.quant.formats import NVFP4, WeightFormat

Floats = NDArray[np.float64]
Raw = dict[str, tuple[str, NDArray[Any]]]
"""Tensors by name: the dtype as safetensors calls it, and bytes or numbers of that size."""

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.array([code * 2.0**-9 if code < 8 else (8 + code % 8) * 2.0 ** (code // 8 - 10) for code in range(127)])
BLOCK = {"nvfp4": 16, "mxfp4": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "nvfp4-pack-quantized": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    "mxfp4-pack-quantized": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
}
LAYOUTS = tuple(CONFIGS)
ONE = np.float32(1)


@dataclass(frozen=True)
class Quantized:
    """codes 0..15 [N, K], block scales as their bytes [N, K / block], and NVFP4's scale of the tensor."""

    kind: str
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    tensor_scale: np.float32 = ONE

    @property
    def values(self) -> Floats:
        """Exact in float64."""
        steps = E4M3[self.scales] if self.kind == "nvfp4" else np.ldexp(1.0, self.scales.astype(int) - 127)
        values: Floats = E2M1[self.codes] * steps.repeat(BLOCK[self.kind], axis=1) * float(self.tensor_scale)
        return values


def kind_of(layout: str) -> str:
    return "mxfp4" if layout.startswith("mxfp4") else "nvfp4"


def quantize(weights: NDArray[np.floating], kind: str) -> Quantized:
    """Nearest codes under the scales that the public recipes take: amax / 6, or the power of two at amax / 4."""
    grouped = weights.astype(np.float64).reshape(len(weights), -1, BLOCK[kind])
    largest = np.abs(grouped).max(axis=2)
    tensor_scale = ONE
    if kind == "nvfp4":
        tensor_scale = np.float32(largest.max() / (6 * 448))
        scales = _nearest(largest / 6 / float(tensor_scale), E4M3)
        steps = E4M3[scales] * float(tensor_scale)
    else:
        with np.errstate(divide="ignore"):
            exponents = np.where(largest > 0, np.floor(np.log2(largest)) - 2, -127)
        scales = exponents.astype(int) + 127
        steps = 2.0**exponents
    scaled = grouped / np.where(steps == 0, 1, steps)[..., None]
    codes = (_nearest(np.abs(scaled), E2M1[:8]) + 8 * (scaled < 0)).reshape(weights.shape)
    return Quantized(kind, codes.astype(np.uint8), scales.astype(np.uint8), tensor_scale)


def _nearest(values: Floats, table: Floats) -> NDArray[np.intp]:
    """Places in an ascending table."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, values)


def drawn(
    random: np.random.Generator, rows: int, columns: int, kind: str, span: int = 3, *, exact_inverse: bool = False
) -> Quantized:
    """Any codes; any finite E4M3 scales, or E8M0 scales of `span` + 1 neighbouring powers of two.

    With `exact_inverse` the scale of the tensor is a power of two, of which a divisor is no other number.
    """
    codes = random.integers(0, 16, (rows, columns), np.uint8)
    shape = rows, columns // BLOCK[kind]
    if kind == "nvfp4":
        tensor_scale = 2.0 ** random.integers(-16, -9) if exact_inverse else random.uniform(1e-5, 1e-3)
        return Quantized(kind, codes, random.integers(0, 127, shape, np.uint8), np.float32(tensor_scale))
    return Quantized(kind, codes, random.integers(118 - span, 119, shape, np.uint8))


def is_layer_matrix(name: str) -> bool:
    return "_proj.weight" in name


def drawn_matrices(
    tensors: Mapping[str, NDArray[np.float32]],
    kind: str,
    picks: Callable[[str], bool] = is_layer_matrix,
    span: int = 3,
) -> dict[str, Quantized]:
    """In place of the matrices that are picked, with a scale of the tensor that has an exact inverse."""
    random = np.random.default_rng(0)
    return {
        name: drawn(random, len(values), values.shape[1], kind, span, exact_inverse=True)
        for name, values in tensors.items()
        if picks(name)
    }


def module_tensors(stem: str, quantized: Quantized, layout: str) -> Raw:
    """What stands in the file in place of `stem`.weight."""
    packed = quantized.codes[:, 0::2] | quantized.codes[:, 1::2] << np.uint8(4)
    one = np.ones(1, np.float32)
    if layout == "modelopt":
        return {
            f"{stem}.weight": ("U8", packed),
            f"{stem}.weight_scale": ("F8_E4M3", quantized.scales),
            f"{stem}.weight_scale_2": ("F32", np.asarray(quantized.tensor_scale)),
            f"{stem}.input_scale": ("F32", one.reshape(())),
        }
    if layout == "nvfp4-pack-quantized":
        return {
            f"{stem}.weight_packed": ("U8", packed),
            f"{stem}.weight_scale": ("F8_E4M3", quantized.scales),
            f"{stem}.weight_global_scale": ("F32", one / quantized.tensor_scale),
            f"{stem}.input_global_scale": ("F32", one),
        }
    return {f"{stem}.weight_packed": ("U8", packed), f"{stem}.weight_scale": ("U8", quantized.scales)}


def raw_tensors(tensors: Mapping[str, NDArray[np.float32]], quantized: Mapping[str, Quantized], layout: str) -> Raw:
    """A model's tensors, those of `quantized` (by the name of the weight) in the layout, the others in fp32."""
    raw: Raw = {}
    for name, values in tensors.items():
        if name in quantized:
            raw |= module_tensors(name.removesuffix(".weight"), quantized[name], layout)
        else:
            raw[name] = ("F32", values)
    return raw


def write_raw_checkpoint(folder: Path, config: Mapping[str, Any], raw: Raw, layout: str | None = None) -> Path:
    """A folder of config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {"quantization_config": CONFIGS[layout]} if layout else {}
    (folder / "config.json").write_text(json.dumps({**config, **quantization}))
    ends = list(accumulate((values.nbytes for _, values in raw.values()), initial=0))
    table = {
        name: {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, end]}
        for (name, (dtype, values)), start, end in zip(raw.items(), ends, ends[1:], strict=False)
    }
    header = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, values in raw.values():
            file.write(values.tobytes())
    return folder


def exact_values(kept: WeightFormat, rows: NDArray[Any], scales: NDArray[Any], columns: int) -> Floats:
    """What packed rows stand for, in float64: nvfp4's last product is rounded in fp32."""
    if kept is not NVFP4:
        return kept.unpack(rows, scales, columns).astype(np.float64)
    row_scales = np.ascontiguousarray(scales[:, -2]).view(np.float32).astype(np.float64)
    plain = scales.copy()
    plain[:, -2] = ONE.view(np.uint32)
    values: Floats = NVFP4.unpack(rows, plain, columns) * row_scales[:, None]
    return values


def ggml_blocks(quantized: Quantized) -> NDArray[np.uint8]:
    """Rows as ggml stores them."""
    scales_in_front, size = {"mxfp4": (1, 32), "nvfp4": (4, 16)}[quantized.kind]
    rows = len(quantized.codes)
    halves = quantized.codes.reshape(rows, -1, scales_in_front, 2, size // 2)
    packed = (halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)).reshape(rows, halves.shape[1], -1)
    scales = quantized.scales.reshape(rows, -1, scales_in_front)
    return np.concatenate([scales, packed], axis=2).reshape(rows, -1)
