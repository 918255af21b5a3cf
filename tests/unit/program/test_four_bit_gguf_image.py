"""GGUF files in MXFP4 and NVFP4 become images of the same numbers, in Hugging Face's order of rows."""

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from four_bit_checkpoint import Floats, Quantized, drawn, exact_values, ggml_blocks
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import stored_formats
from npuserve.models.weight_formats import describe_formats, format_plan, with_formats
from npuserve.program.dram import PAGE, DramLayout, Matrix
from npuserve.program.geometry import Geometry
from npuserve.program.image import build_image
from tiny_gguf import write_gguf

HIDDEN, HEADS, HEAD_DIM, MLP, VOCABULARY = 64, 2, 32, 128, 302
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HEAD_DIM, HIDDEN),
    "attn_v": (HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (MLP, HIDDEN),
    "ffn_up": (MLP, HIDDEN),
    "ffn_down": (HIDDEN, MLP),
}
SIZES = {
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": MLP,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": 1,
}


def written(path: Path, kind: str) -> dict[str, Quantized]:
    random = np.random.default_rng(0)
    tensors: dict[str, NDArray[np.generic]] = {
        "token_embd.weight": random.standard_normal((VOCABULARY, HIDDEN), np.float32),
        "output_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.attn_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.ffn_norm.weight": np.ones(HIDDEN, np.float32),
    }

    quantized = {name: drawn(random, rows, columns, kind) for name, (rows, columns) in MATRICES.items()}
    for name, one in quantized.items():
        tensors[f"blk.0.{name}.weight"] = ggml_blocks(one)
        if kind == "nvfp4":
            tensors[f"blk.0.{name}.scale"] = np.array([one.tensor_scale])
    types = {f"blk.0.{name}.weight": GGMLQuantizationType[kind.upper()] for name in quantized}
    write_gguf(path, tensors=tensors, types=types, extra=SIZES)
    return quantized


def halves_apart(values: Floats, heads: int) -> Floats:
    """Rows of q or k as the converter to GGUF found them."""
    return values.reshape(heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_an_image_holds_the_files_own_numbers(tmp_path: Path, kind: str) -> None:
    quantized = written(tmp_path / "x.gguf", kind)
    checkpoint = open_checkpoint(tmp_path / "x.gguf")
    facts = model_facts(checkpoint.config)
    facts = with_formats(facts, format_plan("auto", None, ""), stored=stored_formats(checkpoint, facts))
    small = "fp4" if kind == "mxfp4" else "nvfp4"
    assert describe_formats(facts) == f"0-0:nvfp4/{small}/{small}/nvfp4,head:int8,own"
    dram = DramLayout(Geometry(facts, 64), num_slots=1, max_rows=4)
    image = build_image(tmp_path / "x.img", "key", checkpoint, facts, dram, lambda done, total: None)
    memory = np.fromfile(image.path, np.uint8)[PAGE:]

    def values(matrix: Matrix, columns: int) -> Floats:
        rows = memory[matrix.weights :][: matrix.n * matrix.row_stride].reshape(matrix.n, -1)
        scales = memory[matrix.scales :][: matrix.n * matrix.scale_stride].view(np.uint32).reshape(matrix.n, -1)
        return exact_values(matrix.format, rows, scales, columns)

    layer, given = dram.layer, {name: one.values for name, one in quantized.items()}
    np.testing.assert_array_equal(values(layer.down, MLP), given["ffn_down"])
    np.testing.assert_array_equal(values(layer.o, HIDDEN), given["attn_output"])
    gates = np.concatenate([given["ffn_gate"], given["ffn_up"]])
    np.testing.assert_array_equal(values(layer.gate_up, HIDDEN), gates)
    inputs = values(layer.qkv, HIDDEN)
    keys = np.concatenate([halves_apart(given["attn_k"], 1), given["attn_v"]])
    np.testing.assert_array_equal(inputs[HIDDEN:], keys)
    factor = float(np.float32(np.log2(np.e) / np.sqrt(HEAD_DIM)))
    np.testing.assert_allclose(inputs[:HIDDEN], halves_apart(given["attn_q"], HEADS) * factor, rtol=2**-23)
    checkpoint.close()
