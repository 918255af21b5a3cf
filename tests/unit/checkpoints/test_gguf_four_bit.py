"""MXFP4 and NVFP4 in GGUF files: the blocks of ggml as the codes and scales that they are."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from four_bit_checkpoint import Quantized, drawn, ggml_blocks
from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.errors import CheckpointError
from npuserve.quant import nibbles
from npuserve.quant.four_bit_rows import FourBitKind
from tiny_gguf import HEAD_DIM, HEADS, HIDDEN, write_gguf

TYPES = {"mxfp4": GGMLQuantizationType.MXFP4, "nvfp4": GGMLQuantizationType.NVFP4}
COLUMNS = 192


def written(path: Path, quantized: Quantized, *, name: str = "x", **beside: NDArray[Any]) -> Checkpoint:
    tensors = {
        f"{name}.weight": ggml_blocks(quantized),
        **{f"{name}.{kind}": values for kind, values in beside.items()},
    }
    return open_checkpoint(
        write_gguf(path / "x.gguf", tensors=tensors, types={f"{name}.weight": TYPES[quantized.kind]})
    )


@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_codes_and_scales_in_order(tmp_path: Path, kind: str) -> None:
    quantized = drawn(np.random.default_rng(1), 6, COLUMNS, kind)
    if kind == "nvfp4":
        checkpoint = written(tmp_path, quantized, scale=np.array([quantized.tensor_scale]))
    else:
        checkpoint = written(tmp_path, quantized)
    assert checkpoint.tensor_names() == ["x.weight"]
    assert checkpoint.four_bit_kind("x.weight") is FourBitKind[kind.upper()]
    rows = checkpoint.four_bit_rows("x.weight", 1, 5)
    np.testing.assert_array_equal(nibbles.split(rows.codes), quantized.codes[1:5])
    np.testing.assert_array_equal(rows.scales, quantized.scales[1:5])
    np.testing.assert_array_equal(checkpoint.four_bit_scales("x.weight"), quantized.scales)
    np.testing.assert_array_equal(rows.row_scales, np.full(4, quantized.tensor_scale))
    np.testing.assert_allclose(checkpoint.tensor("x.weight"), quantized.values, rtol=2**-22)
    checkpoint.close()


def test_scales_of_activations_are_of_no_use(tmp_path: Path) -> None:
    ones = np.ones(1, np.float32)
    checkpoint = written(tmp_path, drawn(np.random.default_rng(1), 2, 64, "nvfp4"), scale=ones, input_scale=ones)
    assert checkpoint.tensor_names() == ["x.weight"]
    checkpoint.close()


def test_scales_of_other_types_are_tensors_that_nobody_knows(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, drawn(np.random.default_rng(1), 2, 64, "mxfp4"), scale=np.ones(1, np.float32))
    assert sorted(checkpoint.tensor_names()) == ["x.scale", "x.weight"]
    checkpoint.close()


def test_rows_of_a_llamas_heads_are_in_hugging_face_order(tmp_path: Path) -> None:
    quantized = drawn(np.random.default_rng(2), HEADS * HEAD_DIM, HIDDEN, "mxfp4")
    name = "model.layers.0.self_attn.q_proj.weight"
    checkpoint = written(tmp_path, quantized, name="blk.0.attn_q")
    order = np.arange(len(quantized.codes)).reshape(HEADS, HEAD_DIM // 2, 2).transpose(0, 2, 1).ravel()
    rows = checkpoint.four_bit_rows(name, 3, 20)
    np.testing.assert_array_equal(nibbles.split(rows.codes), quantized.codes[order[3:20]])
    np.testing.assert_array_equal(rows.dequantized(), checkpoint.tensor_rows(name, 3, 20))
    np.testing.assert_array_equal(checkpoint.tensor(name), quantized.values[order])
    checkpoint.close()


@pytest.mark.parametrize(("kind", "scale"), [("mxfp4", 255), ("mxfp4", 253), ("nvfp4", 0x7F), ("nvfp4", 0x81)])
def test_block_scales_that_cannot_be_are_named(tmp_path: Path, kind: str, scale: int) -> None:
    quantized = drawn(np.random.default_rng(3), 2, 64, kind)
    quantized.scales[1, 1] = scale
    checkpoint = written(tmp_path, quantized)
    assert np.isfinite(checkpoint.tensor_rows("x.weight", 0, 1)).all()
    with pytest.raises(CheckpointError, match=r"x\.weight holds a block scale that cannot be; fetch the file again"):
        checkpoint.tensor("x.weight")
    checkpoint.close()


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.array([np.nan], np.float32), "x.scale is nan, which is no scale of weights"),
        (np.array([np.inf], np.float32), "x.scale is inf"),
        (np.ones(2, np.float32), r"x.scale is F32 \[2\], not one F32"),
        (np.ones(1, np.float16), r"x.scale is F16 \[1\], not one F32"),
    ],
)
def test_tensor_scales_that_cannot_be_are_named(tmp_path: Path, scale: NDArray[Any], message: str) -> None:
    checkpoint = written(tmp_path, drawn(np.random.default_rng(3), 2, 64, "nvfp4"), scale=scale)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.four_bit_rows("x.weight", 0, 2)
    checkpoint.close()


def test_the_gguf_package_reads_the_same_numbers() -> None:
    """What the tests write is what ggml means."""
    for kind, number in TYPES.items():
        quantized = drawn(np.random.default_rng(4), 5, COLUMNS, kind)
        theirs = gguf.quants.dequantize(ggml_blocks(quantized), number).astype(np.float64)
        np.testing.assert_array_equal(theirs * float(quantized.tensor_scale), quantized.values)
