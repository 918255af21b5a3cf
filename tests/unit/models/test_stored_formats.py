"""Which format holds what a checkpoint has in 4 bits, and what plans make of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from four_bit_checkpoint import Quantized, drawn, kind_of, raw_tensors, write_raw_checkpoint
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import MOST_KINDS, NOTHING_STORED, StoredFormats, stored_formats
from npuserve.models.weight_formats import describe_formats, format_plan, with_formats
from npuserve.quant.formats import FP4, INT4, INT8, NVFP4
from tiny_checkpoint import random_tensors, tiny_config, write_checkpoint

MX, MODELOPT = "mxfp4-pack-quantized", "modelopt"


def written(
    folder: Path, layout: str, plain: Sequence[str] = (), wide: Sequence[str] = (), **changes: Any
) -> tuple[ModelFacts, StoredFormats]:
    """A checkpoint whose layers are in 4 bits but for the tensors named like `plain`; those named like `wide` have
    scales that fp4 does not hold."""
    config = tiny_config("qwen3", **changes)
    tensors, random = random_tensors(config), np.random.default_rng(0)
    quantized: dict[str, Quantized] = {}
    for name, values in tensors.items():
        if "_proj.weight" in name and not any(part in name for part in plain):
            span = 12 if any(part in name for part in wide) else 3
            quantized[name] = drawn(random, len(values), values.shape[1], kind_of(layout), span)
    write_raw_checkpoint(folder, config, raw_tensors(tensors, quantized, layout), layout)
    checkpoint = open_checkpoint(folder)
    facts = model_facts(checkpoint.config)
    found = stored_formats(checkpoint, facts)
    checkpoint.close()
    return facts, found


def layers(facts: ModelFacts, stored: StoredFormats, wformat: str = "auto", mix: str = "") -> list[str]:
    made = with_formats(facts, format_plan(wformat, None, mix), stored=stored)
    return [str(made.kinds[made.kind_of(layer)].formats) for layer in range(made.num_layers)]


def test_a_checkpoint_in_full_precision_stores_nothing(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, config))
    assert stored_formats(checkpoint, model_facts(config)) is NOTHING_STORED
    checkpoint.close()


def test_mxfp4_is_fp4_layer_by_layer_where_that_is_exact(tmp_path: Path) -> None:
    facts, stored = written(tmp_path, MX, wide=["layers.1.mlp.up_proj", "layers.0.self_attn.o_proj"])
    assert layers(facts, stored) == ["nvfp4/fp4/fp4/nvfp4", "fp4/nvfp4/fp4/fp4"]


def test_too_many_kinds_of_layers_are_evened_out(tmp_path: Path) -> None:
    """12 kinds of layers by what fp4 holds of them become two, by what is in 4 bits."""
    parts = ("self_attn.k_proj", "mlp.gate_proj")
    wide = [f"layers.{layer}.{part}" for layer in range(16) for bit, part in enumerate(parts) if layer >> bit & 1]
    wide += [f"layers.{layer}.mlp.down_proj" for layer in range(4, 12)]
    plain = [f"layers.{layer}.mlp.up_proj" for layer in range(8, 16)]
    facts, stored = written(tmp_path, MX, plain, wide, num_hidden_layers=16)
    assert len({repr(layer) for layer in stored.layers}) < MOST_KINDS
    assert layers(facts, stored) == ["nvfp4/nvfp4/nvfp4/nvfp4"] * 8 + ["nvfp4/int8/nvfp4/nvfp4"] * 8


def test_a_part_of_which_some_is_not_in_four_bits_follows_the_rules(tmp_path: Path) -> None:
    facts, stored = written(tmp_path, MODELOPT, plain=["layers.0.self_attn.q_proj", "layers.1.mlp.down"])
    assert layers(facts, stored) == ["int8/nvfp4/nvfp4/int8", "nvfp4/nvfp4/int8/nvfp4"]
    assert layers(facts, stored, mix="attn=fp4,mlp=int4") == ["fp4/nvfp4/nvfp4/int8", "nvfp4/nvfp4/int4/nvfp4"]


@pytest.mark.parametrize(
    ("layout", "wformat", "takes_over"),
    [
        (MODELOPT, "auto", True),
        (MODELOPT, "nvfp4", True),
        (MODELOPT, "fp4", False),
        (MODELOPT, "int8", False),
        (MX, "auto", True),
        (MX, "nvfp4", True),
        (MX, "fp4", True),
        (MX, "int4", False),
        (MX, "int8", False),
    ],
)
def test_what_a_format_can_hold_is_taken_over_whoever_chose_it(
    tmp_path: Path, layout: str, wformat: str, takes_over: bool
) -> None:
    facts, stored = written(tmp_path, layout)
    made = with_formats(facts, format_plan(wformat, "int8", ""), stored=stored)
    assert made.takes_over is takes_over
    assert made.rotated is not takes_over
    assert ("own" in describe_formats(made)) is takes_over


def test_a_mix_that_somebody_asks_for_goes_before_the_checkpoint(tmp_path: Path) -> None:
    facts, stored = written(tmp_path, MODELOPT)
    assert layers(facts, stored, "mix", "down=fp4") == ["int8/int8/fp4/int8"] * 2
    plan = format_plan("auto", None, "down=fp4", keeps=False)
    assert with_formats(facts, plan, stored=stored).formats.mixer is INT8


def test_the_head_follows_the_checkpoint_unless_it_has_a_format_of_its_own(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    tensors = random_tensors(config)
    head = drawn(np.random.default_rng(0), 300, 96, "mxfp4")
    write_raw_checkpoint(tmp_path, config, raw_tensors(tensors, {"lm_head.weight": head}, MX), MX)
    checkpoint = open_checkpoint(tmp_path)
    facts = model_facts(config)
    stored = stored_formats(checkpoint, facts)
    assert stored.head is FP4
    assert with_formats(facts, format_plan("auto", None, ""), stored=stored).head_format is FP4
    made = with_formats(facts, format_plan("auto", "int4", ""), stored=stored)
    assert made.head_format is INT4
    assert made.rotated
    made = with_formats(facts, format_plan("int8", "nvfp4", ""), stored=stored)
    assert made.head_format is NVFP4
    assert not made.rotated
    checkpoint.close()
