"""Safetensors folders of NVFP4 and MXFP4 as Model Optimizer and llm-compressor write them, sound and hostile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from four_bit_checkpoint import (
    LAYOUTS,
    Quantized,
    Raw,
    drawn,
    kind_of,
    module_tensors,
    write_raw_checkpoint,
)
from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.quant.four_bit_rows import FourBitKind

CONFIG = {"model_type": "llama"}
PLAIN = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def sound(layout: str) -> tuple[Raw, Quantized]:
    quantized = drawn(np.random.default_rng(1), 6, 96, kind_of(layout))
    return {**module_tensors("a", quantized, layout), "b.weight": ("F32", PLAIN)}, quantized


def opened(folder: Path, layout: str | None, raw: Raw, **config: Any) -> Checkpoint:
    return open_checkpoint(write_raw_checkpoint(folder, CONFIG | config, raw, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantized_matrix_has_the_name_and_shape_it_had(tmp_path: Path, layout: str) -> None:
    raw, _ = sound(layout)
    raw |= {f"a.{scale}": ("F32", np.ones(1, np.float32)) for scale in ("k_scale", "v_scale", "input_scale")}
    checkpoint = opened(tmp_path, layout, raw)
    assert sorted(checkpoint.tensor_names()) == ["a.weight", "b.weight"]
    assert checkpoint.shape("a.weight") == (6, 96)
    assert checkpoint.four_bit_kind("a.weight") is FourBitKind[kind_of(layout).upper()]
    assert checkpoint.four_bit_kind("b.weight") is None
    checkpoint.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_its_numbers_are_codes_times_scales(tmp_path: Path, layout: str) -> None:
    raw, quantized = sound(layout)
    checkpoint = opened(tmp_path, layout, raw)
    np.testing.assert_allclose(checkpoint.tensor("a.weight"), quantized.values, rtol=2**-22)
    np.testing.assert_array_equal(checkpoint.tensor_rows("a.weight", 2, 5), checkpoint.tensor("a.weight")[2:5])
    np.testing.assert_array_equal(checkpoint.tensor("b.weight"), PLAIN)
    rows = checkpoint.four_bit_rows("a.weight", 2, 5)
    np.testing.assert_array_equal(rows.scales, quantized.scales[2:5])
    np.testing.assert_array_equal(checkpoint.four_bit_scales("a.weight"), quantized.scales)
    np.testing.assert_allclose(rows.row_scales, float(quantized.tensor_scale), rtol=2**-22)
    with pytest.raises(ValueError, match=r"rows 2\.\.7 of a.weight, which has 6"):
        checkpoint.four_bit_rows("a.weight", 2, 7)
    checkpoint.close()


def test_scales_of_mxfp4_may_be_stored_under_their_own_name(tmp_path: Path) -> None:
    raw, quantized = sound("mxfp4-pack-quantized")
    raw["a.weight_scale"] = ("F8_E8M0", quantized.scales)
    checkpoint = opened(tmp_path, "mxfp4-pack-quantized", raw)
    np.testing.assert_array_equal(checkpoint.tensor("a.weight"), quantized.values)
    checkpoint.close()


def test_the_fingerprint_follows_the_scales(tmp_path: Path) -> None:
    raw, _ = sound("modelopt")
    (tmp_path / "tokenizer.json").write_text("{}")
    first = opened(tmp_path, "modelopt", raw).fingerprint
    raw["a.weight_scale_2"] = ("F32", np.asarray(np.float32(0.5)))
    assert opened(tmp_path, "modelopt", raw).fingerprint != first


def gone(name: str) -> Callable[[Raw], object]:
    return lambda raw: raw.pop(name)


def put(name: str, dtype: str, values: Any) -> Callable[[Raw], object]:
    return lambda raw: raw.__setitem__(name, (dtype, values))


BYTES = np.zeros((6, 6), np.uint8)
AT_OPENING = {
    "no scales": ("modelopt", gone("a.weight_scale"), "a.weight has no a.weight_scale beside it"),
    "no scales of packed": ("mxfp4-pack-quantized", gone("a.weight_scale"), "a.weight_packed has no a.weight_scale"),
    "no tensor scale": ("modelopt", gone("a.weight_scale_2"), "a.weight has neither a.weight_scale_2 nor"),
    "scales of fewer rows": (
        "modelopt",
        put("a.weight_scale", "F8_E4M3", BYTES[:5]),
        r"a.weight_scale has shape \[5, 6\], but a.weight of shape \[6, 48\] needs \[6, 6\]",
    ),
    "scales of other blocks": (
        "mxfp4-pack-quantized",
        put("a.weight_scale", "U8", BYTES),
        r"a.weight_scale has shape \[6, 6\], but a.weight_packed of shape \[6, 48\] needs \[6, 3\]",
    ),
    "swizzled scales": ("modelopt", put("a.weight_scale", "F8_E4M3", np.zeros((128, 8), np.uint8)), r"\[128, 8\]"),
    "scales in half precision": (
        "modelopt",
        put("a.weight_scale", "BF16", np.zeros((6, 6), np.uint16)),
        "a.weight_scale is stored as BF16, but must be F8_E4M3",
    ),
    "bytes where floats were due": ("modelopt", put("a.weight_scale", "U8", BYTES), "is stored as U8"),
    "a tensor scale for each row": (
        "nvfp4-pack-quantized",
        put("a.weight_global_scale", "F32", np.ones(6, np.float32)),
        r"a.weight_global_scale has shape \[6\]",
    ),
    "a tensor scale in half precision": (
        "modelopt",
        put("a.weight_scale_2", "F16", np.ones(1, np.float16)),
        "a.weight_scale_2 is stored as F16, but must be F32",
    ),
    "half a block": (
        "mxfp4-pack-quantized",
        lambda raw: raw.update(
            {"a.weight_packed": ("U8", np.zeros((6, 8), np.uint8)), "a.weight_scale": ("U8", BYTES[:, :1])}
        ),
        "a.weight_packed has 16 columns, which are no whole blocks of 32",
    ),
}
NOT_READ = {
    "integers of 4 bits": put("a.weight_packed", "I32", np.zeros((6, 12), np.int32)),
    "experts in one tensor": put("a.weight_packed", "U8", np.zeros((2, 6, 48), np.uint8)),
    "scaled activations": put("a.pre_quant_scale", "BF16", np.zeros(96, np.uint16)),
    "zero points": put("a.weight_zero_point", "I8", np.zeros((6, 6), np.int8)),
}
WHEN_READ = {
    "a block scale of NaN": (
        "modelopt",
        put("a.weight_scale", "F8_E4M3", BYTES + np.uint8(0x7F)),
        "a.weight_scale holds",
    ),
    "a block scale of -NaN": (
        "modelopt",
        put("a.weight_scale", "F8_E4M3", BYTES + np.uint8(0xFF)),
        "a.weight_scale holds",
    ),
    "E8M0 NaN": (
        "mxfp4-pack-quantized",
        put("a.weight_scale", "U8", BYTES[:, :3] + np.uint8(255)),
        "a.weight_scale holds",
    ),
    "E8M0 past fp32": ("mxfp4-pack-quantized", put("a.weight_scale", "U8", BYTES[:, :3] + np.uint8(253)), "not finite"),
    "a tensor scale of NaN": (
        "modelopt",
        put("a.weight_scale_2", "F32", np.full(1, np.nan, np.float32)),
        "a.weight_scale_2 is nan, which is no scale of weights",
    ),
    "an infinite tensor scale": (
        "modelopt",
        put("a.weight_scale_2", "F32", np.full(1, np.inf, np.float32)),
        "a.weight_scale_2 is inf",
    ),
    "a divisor of 0": (
        "nvfp4-pack-quantized",
        put("a.weight_global_scale", "F32", np.zeros(1, np.float32)),
        "a.weight_global_scale is 0",
    ),
    "an infinite divisor": (
        "nvfp4-pack-quantized",
        put("a.weight_global_scale", "F32", np.full(1, np.inf, np.float32)),
        "a.weight_global_scale is",
    ),
}


def one_line(error: pytest.ExceptionInfo[CheckpointError], folder: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"{folder}: ")
    return text


@pytest.mark.parametrize("case", AT_OPENING)
def test_damage_that_the_table_shows_is_named_at_once(tmp_path: Path, case: str) -> None:
    layout, damage, message = AT_OPENING[case]
    raw, _ = sound(layout)
    damage(raw)
    with pytest.raises(CheckpointError, match=message) as error:
        opened(tmp_path, layout, raw)
    assert one_line(error, tmp_path).endswith("fetch the checkpoint again, or one in bf16")


@pytest.mark.parametrize("case", NOT_READ)
def test_other_ways_to_pack_are_refused(tmp_path: Path, case: str) -> None:
    raw, _ = sound("nvfp4-pack-quantized")
    NOT_READ[case](raw)
    with pytest.raises(UnsupportedModelError, match=r"a\.") as error:
        opened(tmp_path, "nvfp4-pack-quantized", raw)
    assert "read" in one_line(error, tmp_path)


@pytest.mark.parametrize("case", WHEN_READ)
def test_numbers_that_cannot_be_are_named_when_they_are_read(tmp_path: Path, case: str) -> None:
    layout, damage, message = WHEN_READ[case]
    raw, _ = sound(layout)
    damage(raw)
    checkpoint = opened(tmp_path, layout, raw)
    for read in (checkpoint.tensor, lambda name: checkpoint.four_bit_rows(name, 0, 6)):
        with pytest.raises(CheckpointError, match=message) as error:
            read("a.weight")
        assert one_line(error, tmp_path).endswith("fetch the checkpoint again, or one in bf16")
    checkpoint.close()


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes", "mxfp4", None])
def test_other_methods_are_refused_by_name(tmp_path: Path, method: str | None) -> None:
    with pytest.raises(UnsupportedModelError, match=f"quantization_config is of method '{method}'; NVFP4"):
        opened(tmp_path, None, {"b.weight": ("F32", PLAIN)}, quantization_config={"quant_method": method})


def transformed(location: Any) -> dict[str, Any]:
    groups = {"R1": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": location}]}}
    return {"quant_method": "compressed-tensors", "transform_config": {"config_groups": groups}}


def test_transforms_that_are_folded_into_weights_are_nothing_to_do(tmp_path: Path) -> None:
    raw, _ = sound("nvfp4-pack-quantized")
    opened(tmp_path, None, raw, quantization_config=transformed("weight_input")).close()
    opened(tmp_path, None, raw, quantization_config=transformed("weight_output") | {"transform_config": {}}).close()


@pytest.mark.parametrize("location", ["input", "k_cache", None])
def test_transforms_while_the_model_runs_are_refused(tmp_path: Path, location: str | None) -> None:
    raw, _ = sound("nvfp4-pack-quantized")
    with pytest.raises(UnsupportedModelError, match=f"transforms {location!r} while the model runs"):
        opened(tmp_path, None, raw, quantization_config=transformed(location))


@pytest.mark.parametrize("groups", [[], {"R1": []}, {"R1": {}}, {"R1": {"apply": {}}}, {"R1": {"apply": ["x"]}}])
def test_transforms_of_another_form_are_refused(tmp_path: Path, groups: Any) -> None:
    raw, _ = sound("nvfp4-pack-quantized")
    quantization = {"quant_method": "compressed-tensors", "transform_config": {"config_groups": groups}}
    with pytest.raises(UnsupportedModelError, match="transforms None"):
        opened(tmp_path, None, raw, quantization_config=quantization)
