"""Tiny models in NVFP4 and MXFP4 on the simulated device, against transformers with the same numbers in float32.

The checkpoints are written by `four_bit_checkpoint`, whose tables also give transformers its weights: nothing that
the device's weights went through is shared.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from four_bit_checkpoint import BLOCK, Quantized, Raw, kind_of, quantize, raw_tensors, write_raw_checkpoint
from npuserve.models.weight_formats import describe_formats, format_plan
from oracle.family_models import FAMILY_MODELS
from oracle.test_tiny_models import cosines, tokens
from simulated_device import Simulated, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
import torch

from oracle.transformers_models import logits_of, save_tiny_model

pytestmark = pytest.mark.oracle

PLAIN_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, padded blocks, tied": (
        "llama",
        {"hidden_size": 576, "intermediate_size": 736, "num_attention_heads": 9, "num_key_value_heads": 3}
        | {"head_dim": 64, "tie_word_embeddings": True},
    ),
    "llama with biases": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {"hidden_size": 128}),
    "qwen3": ("qwen3", {"hidden_size": 160, "head_dim": 64}),
}
MODELS = PLAIN_MODELS | FAMILY_MODELS
DEEP = "gemma4, windows of 100, own and shared keys, two sizes of heads"
"""Nine layers of few channels, which int8 activations cost that much; with int8 weights it is more."""
LEFT_OUT = ("embed_tokens", "in_proj_a", "in_proj_b")
"""Modules that recipes leave in full precision."""


def is_quantized(name: str, shape: tuple[int, ...], kind: str) -> bool:
    is_matrix = len(shape) == 2 and name.endswith(".weight") and not any(part in name for part in LEFT_OUT)
    return is_matrix and shape[1] % BLOCK[kind] == 0


def quantized_model(folder: Path, layout: str, name: str) -> Any:
    """A checkpoint in `folder`, and transformers' model with what its codes and scales stand for."""
    family, changes = MODELS[name]
    model = save_tiny_model(folder, family, initializer_range=0.04, **changes)
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    kind = kind_of(layout)
    chosen: dict[str, Quantized] = {}
    parameters = dict(model.named_parameters())
    for tensor, values in tensors.items():
        if is_quantized(tensor, values.shape, kind):
            chosen[tensor] = quantize(values, kind)
            with torch.no_grad():
                parameters[tensor].copy_(torch.from_numpy(chosen[tensor].values))
    assert len(chosen) > 7
    write_raw_checkpoint(folder, config, raw_tensors(tensors, chosen, layout), layout)
    return model


def on_device(folder: Path, wformat: str = "auto", **options: Any) -> Simulated:
    return simulate(folder, formats=format_plan(wformat, None, ""), **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", ["modelopt", "mxfp4-pack-quantized"])
def test_logits_are_those_of_the_checkpoints_numbers(layout: str, name: str, tmp_path: Path) -> None:
    model = quantized_model(tmp_path, layout, name)
    simulated = on_device(tmp_path, num_slots=1)
    assert simulated.facts.takes_over
    assert describe_formats(simulated.facts).endswith("own")
    ids = tokens(40)
    found = cosines(simulated.feed(ids, chunk=32), logits_of(model, ids))
    assert found.mean() > (0.996 if name == DEEP else 0.998)
    if name in PLAIN_MODELS:
        assert found.min() > 0.998


@pytest.mark.parametrize("wformat", ["auto", "nvfp4", "int8"])
def test_a_divisor_of_the_whole_tensor_is_a_divisor(wformat: str, tmp_path: Path) -> None:
    model = quantized_model(tmp_path, "nvfp4-pack-quantized", "qwen3")
    ids = tokens(40)
    simulated = on_device(tmp_path, wformat)
    assert simulated.facts.takes_over == (wformat != "int8")
    least = 0.98 if wformat == "nvfp4" else 0.998  # the head is in full precision, and loses in four bits
    assert cosines(simulated.feed(ids), logits_of(model, ids)).min() > least


@pytest.mark.parametrize("layout", ["modelopt", "mxfp4-pack-quantized"])
def test_numbers_kept_are_nearer_than_numbers_quantized_twice(layout: str, tmp_path: Path) -> None:
    model = quantized_model(tmp_path, layout, "qwen3")
    ids = tokens(40)
    kept = on_device(tmp_path)
    plain: Raw = {name: ("F32", kept.checkpoint.tensor(name)) for name in kept.checkpoint.tensor_names()}
    write_raw_checkpoint(tmp_path / "plain", kept.checkpoint.config, plain)
    twice = simulate(tmp_path / "plain", formats=format_plan("nvfp4", "int8", ""))
    expected = logits_of(model, ids)
    lost = [float(np.mean(1 - cosines(device.feed(ids), expected))) for device in (kept, twice)]
    assert lost[0] < lost[1] / 3
