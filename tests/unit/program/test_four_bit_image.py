"""Images of 4-bit checkpoints: what they hold is what the checkpoint has, bit for bit where the formats allow it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from four_bit_checkpoint import (
    LAYOUTS,
    Quantized,
    drawn_matrices,
    exact_values,
    is_layer_matrix,
    kind_of,
    raw_tensors,
    write_raw_checkpoint,
)
from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import stored_formats
from npuserve.models.weight_formats import describe_formats, format_label, format_plan, with_formats
from npuserve.program.dram import PAGE, DramLayout, Matrix
from npuserve.program.geometry import Geometry
from npuserve.program.image import build_image
from tiny_checkpoint import Tensors, random_tensors, tiny_config, write_checkpoint

FUSED = {"qkv": ("self_attn", "q_proj", "k_proj", "v_proj"), "gate_up": ("mlp", "gate_proj", "up_proj")}


@dataclass(frozen=True)
class Built:
    checkpoint: Checkpoint
    facts: ModelFacts
    dram: DramLayout
    memory: NDArray[np.uint8]

    def values(self, layer: int, name: str, columns: int) -> NDArray[np.float64]:
        """A matrix of a layer, in float64."""
        matrix: Matrix = getattr(self.dram.kinds[self.facts.kind_of(layer)], name)
        return self._values(self.dram.layer_starts[layer], matrix, columns)

    def head(self, columns: int) -> NDArray[np.float64]:
        return self._values(0, self.dram.head, columns)

    def _values(self, base: int, matrix: Matrix, columns: int) -> NDArray[np.float64]:
        kept = matrix.format
        rows = self.memory[base + matrix.weights :][: matrix.n * matrix.row_stride].reshape(matrix.n, -1)
        words = self.memory[base + matrix.scales :][: matrix.n * matrix.scale_stride].view(np.uint32)
        scales = np.ascontiguousarray(words.reshape(matrix.n, -1)[:, : kept.scale_words(matrix.blocks)])
        if not kept.is_four_bit:
            return kept.unpack(rows.view(np.int8), scales.view(np.float32), columns).astype(np.float64)
        return exact_values(kept, rows, scales, columns)


def build(folder: Path, wformat: str = "auto", head: str | None = None, *, paired: bool = False) -> Built:
    checkpoint = open_checkpoint(folder)
    facts = model_facts(checkpoint.config)
    plan = format_plan(wformat, head, "")
    facts = with_formats(facts, plan, paired=paired, stored=stored_formats(checkpoint, facts))
    dram = DramLayout(Geometry(facts, 256), num_slots=1, max_rows=4)
    image = build_image(folder / "x.img", "key", checkpoint, facts, dram, lambda done, total: None)
    memory = np.fromfile(image.path, np.uint8)[PAGE : PAGE + image.image_bytes]
    checkpoint.close()
    return Built(checkpoint, facts, dram, memory)


def fused(tensors: Tensors) -> Tensors:
    """A Llama's tensors as Phi-3 stores them."""
    result = dict(tensors)
    for layer in range(2):
        for name, (part, *pieces) in FUSED.items():
            prefix = f"model.layers.{layer}.{part}."
            stacked = [result.pop(f"{prefix}{piece}.weight") for piece in pieces]
            result[f"{prefix}{name}_proj.weight"] = np.concatenate(stacked)
    return result


def model(model_type: str, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    config = tiny_config(model_type, **changes)
    tensors = random_tensors(config)
    return config, fused(tensors) if model_type == "phi3" else tensors


def stack(quantized: Mapping[str, Quantized], layer: int, part: str, *names: str) -> NDArray[np.float64]:
    return np.concatenate([quantized[f"model.layers.{layer}.{part}.{name}.weight"].values for name in names])


def expected_inputs(quantized: Mapping[str, Quantized], layer: int, model_type: str) -> NDArray[np.float64]:
    names = ["qkv_proj"] if model_type == "phi3" else ["q_proj", "k_proj", "v_proj"]
    values = stack(quantized, layer, "self_attn", *names)
    if model_type != "qwen3":
        values[:192] *= float(np.float32(np.log2(np.e) / np.sqrt(32)))
    return values


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "phi3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_hold_the_checkpoints_own_numbers(tmp_path: Path, layout: str, model_type: str) -> None:
    """In padded blocks, with q, k and v below each other whether the checkpoint fuses them or not; only the rows of q
    have one more rounding, where the scale of scores is multiplied into their fp32 scale."""
    config, tensors = model(model_type, attention_bias=model_type == "qwen3")
    quantized = drawn_matrices(tensors, kind_of(layout))
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, quantized, layout), layout)
    built = build(tmp_path)
    small = "fp4" if layout.startswith("mxfp4") else "nvfp4"
    mixer = small if model_type == "qwen3" else "nvfp4"
    assert str(built.facts.formats) == f"{mixer}/{small}/{small}/{mixer}"
    assert built.facts.head_format.name == "int8"
    assert built.facts.takes_over
    assert not built.facts.rotated
    for layer in range(2):
        names = ["gate_up_proj"] if model_type == "phi3" else ["gate_proj", "up_proj"]
        np.testing.assert_array_equal(built.values(layer, "gate_up", 96), stack(quantized, layer, "mlp", *names))
        np.testing.assert_array_equal(built.values(layer, "down", 160), stack(quantized, layer, "mlp", "down_proj"))
        np.testing.assert_array_equal(built.values(layer, "o", 192), stack(quantized, layer, "self_attn", "o_proj"))
        inputs, expected = built.values(layer, "qkv", 96), expected_inputs(quantized, layer, model_type)
        np.testing.assert_array_equal(inputs[192:], expected[192:])
        np.testing.assert_allclose(inputs[:192], expected[:192], rtol=0 if model_type == "qwen3" else 2**-23)


def test_norms_stay_where_they_are(tmp_path: Path) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, "nvfp4")
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, quantized, "modelopt"), "modelopt")
    built = build(tmp_path)
    start = built.dram.layer_starts[1]
    vectors = built.memory[start : start + 4 * 256].view(np.float32)
    np.testing.assert_array_equal(vectors[:96], tensors["model.layers.1.input_layernorm.weight"])
    np.testing.assert_array_equal(vectors[128:224], tensors["model.layers.1.post_attention_layernorm.weight"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_in_four_bits_is_kept_piece_by_piece(tmp_path: Path, layout: str, tied: bool) -> None:
    config, tensors = model("llama", vocab_size=5000, tie_word_embeddings=tied)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    quantized = drawn_matrices(tensors, kind_of(layout), lambda other: other == name)
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, quantized, layout), layout)
    built = build(tmp_path)
    assert built.facts.head_format.name == ("fp4" if layout.startswith("mxfp4") else "nvfp4")
    assert str(built.facts.formats) == "int8/int8/int8/int8"
    np.testing.assert_array_equal(built.head(96), quantized[name].values)
    assert build(tmp_path, head="int8").facts.rotated


def test_nothing_that_is_kept_is_ever_dequantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, "nvfp4")
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, quantized, "modelopt"), "modelopt")
    monkeypatch.setattr("npuserve.quant.four_bit_rows.FourBitRows.dequantized", None)
    build(tmp_path)


def records(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_exact_image_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, "mxfp4", is_layer_matrix, span=17)
    raw = raw_tensors(tensors, quantized, "mxfp4-pack-quantized")
    write_raw_checkpoint(tmp_path, config, raw, "mxfp4-pack-quantized")
    with caplog.at_level(logging.DEBUG):
        built = build(tmp_path)
    assert str(built.facts.formats) == "nvfp4/nvfp4/nvfp4/nvfp4"
    np.testing.assert_array_equal(built.values(1, "down", 160), stack(quantized, 1, "mlp", "down_proj"))
    assert records(caplog) == []


def test_parts_left_in_full_precision_are_as_in_any_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A matrix of which some tensors are not in 4 bits is int8, and one line counts what was quantized anew."""
    config, tensors = model("llama")
    plain = ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.v_proj.weight")
    quantized = drawn_matrices(tensors, "nvfp4", lambda name: is_layer_matrix(name) and name not in plain)
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, quantized, "modelopt"), "modelopt")
    built = build(tmp_path)
    formats = [str(built.facts.kinds[built.facts.kind_of(layer)].formats) for layer in range(2)]
    assert formats == ["nvfp4/nvfp4/int8/nvfp4", "int8/nvfp4/nvfp4/int8"]
    np.testing.assert_array_equal(built.values(1, "down", 160), stack(quantized, 1, "mlp", "down_proj"))
    down = tensors[plain[0]]
    np.testing.assert_allclose(built.values(0, "down", 160), down, atol=np.abs(down).max() / 127)
    expected = [f"{tmp_path}: quantized anew, as they are not exact there: 3 NVFP4 tensors as int8"]
    assert records(caplog) == expected


def test_blocks_out_of_reach_are_counted_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, "mxfp4", is_layer_matrix, span=0)
    for name, rows in (("0.mlp.down_proj", 3), ("1.self_attn.q_proj", 2)):
        quantized[f"model.layers.{name}.weight"].scales[:rows, 1] -= 20
    raw = raw_tensors(tensors, quantized, "mxfp4-pack-quantized")
    write_raw_checkpoint(tmp_path, config, raw, "mxfp4-pack-quantized")
    built = build(tmp_path)
    assert str(built.facts.formats) == "nvfp4/fp4/nvfp4/nvfp4"
    assert records(caplog) == [
        f"{tmp_path}: quantized anew, as they are not exact there: 5 blocks of 2 MXFP4 tensors in nvfp4"
    ]
    down = stack(quantized, 0, "mlp", "down_proj")
    np.testing.assert_allclose(built.values(0, "down", 160), down, atol=np.abs(down).max() * 2**-18)


def test_mxfp4_as_fp4_rounds_the_scales_of_q_and_keeps_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, "mxfp4")
    raw = raw_tensors(tensors, quantized, "mxfp4-pack-quantized")
    write_raw_checkpoint(tmp_path, config, raw, "mxfp4-pack-quantized")
    built = build(tmp_path, "fp4")
    np.testing.assert_array_equal(built.values(0, "o", 192), stack(quantized, 0, "self_attn", "o_proj"))
    inputs, expected = built.values(0, "qkv", 96), expected_inputs(quantized, 0, "llama")
    np.testing.assert_array_equal(inputs[192:], expected[192:])
    np.testing.assert_allclose(inputs[:192], expected[:192], rtol=2**-8)
    assert records(caplog) == [
        f"{tmp_path}: quantized anew, as they are not exact there: 384 blocks of 2 MXFP4 tensors in fp4"
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wformat", ["int8", "int4"])
def test_a_format_that_holds_nothing_makes_the_image_of_the_dequantized_checkpoint(
    tmp_path: Path, layout: str, wformat: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, tensors = model("llama")
    quantized = drawn_matrices(tensors, kind_of(layout))
    write_raw_checkpoint(tmp_path / "a", config, raw_tensors(tensors, quantized, layout), layout)
    values = {name: one.values.astype(np.float32) for name, one in quantized.items()}
    write_checkpoint(tmp_path / "b", config, {**tensors, **values})
    first, second = build(tmp_path / "a", wformat), build(tmp_path / "b", wformat)
    assert first.facts.rotated
    assert describe_formats(first.facts) == describe_formats(second.facts) == wformat
    np.testing.assert_array_equal(first.memory, second.memory)
    kind = kind_of(layout).upper()
    expected = f"{tmp_path / 'a'}: quantized anew, as they are not exact there: 14 {kind} tensors as {wformat}"
    assert records(caplog) == [expected]


def test_images_that_take_over_have_keys_and_names_of_their_own(tmp_path: Path) -> None:
    config, tensors = model("llama")
    picks: dict[str, Callable[[str], bool]] = {
        "some": is_layer_matrix,
        "all": lambda name: "proj" in name or "head" in name,
    }
    for folder, picked in picks.items():
        quantized = drawn_matrices(tensors, "nvfp4", picked)
        write_raw_checkpoint(tmp_path / folder, config, raw_tensors(tensors, quantized, "modelopt"), "modelopt")
    kept, same = build(tmp_path / "all"), build(tmp_path / "all", "nvfp4")
    assert describe_formats(kept.facts) == format_label(kept.facts) == "nvfp4own"
    np.testing.assert_array_equal(kept.memory, same.memory)
    write_checkpoint(tmp_path / "plain", config, tensors)
    assert describe_formats(build(tmp_path / "plain", "nvfp4").facts) == "nvfp4"
    some = build(tmp_path / "some").facts
    assert describe_formats(some) == "0-1:nvfp4/nvfp4/nvfp4/nvfp4,head:int8,own"
    assert format_label(some).startswith("mix-")


def test_paired_rows_of_scales_are_padded(tmp_path: Path) -> None:
    config, tensors = model("qwen3")
    quantized = drawn_matrices(tensors, "mxfp4")
    raw = raw_tensors(tensors, quantized, "mxfp4-pack-quantized")
    write_raw_checkpoint(tmp_path, config, raw, "mxfp4-pack-quantized")
    built = build(tmp_path, paired=True)
    assert describe_formats(built.facts) == "0-1:fp4/fp4/fp4/fp4p,head:int8,own"
    np.testing.assert_array_equal(built.values(1, "o", 192), stack(quantized, 1, "self_attn", "o_proj"))
    np.testing.assert_array_equal(built.values(1, "qkv", 96), expected_inputs(quantized, 1, "qwen3"))
