"""Tiny models with 4-bit weights on the simulated device, against the float64 emulation and transformers.

What a format costs depends on the weights and is measured on a real model (docs/benchmarks.md); here the device must
compute what its own weights say, and be as near to transformers as random weights let a format be.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.isa.machine import BOARD
from npuserve.models.registry import model_facts
from npuserve.models.weight_formats import FormatPlan, format_plan
from npuserve.quant.formats import FP4
from oracle.device_weights import device_weights
from oracle.emulation import Array, Emulation
from oracle.family_models import FAMILY_MODELS
from oracle.test_tiny_models import cosines, tokens
from simulated_device import Simulated, simulate

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from oracle.transformers_models import logits_of, save_tiny_model

pytestmark = pytest.mark.oracle

SIZES: dict[str, dict[str, Any]] = {
    "odd blocks": {"hidden_size": 384, "intermediate_size": 640, "num_attention_heads": 6, "head_dim": 64},
    "padded blocks": {"hidden_size": 200, "intermediate_size": 333, "num_attention_heads": 4, "head_dim": 48},
}
FOUR_BIT = ("int4", "fp4", "nvfp4")


def emulated(simulated: Simulated, ids: NDArray[np.int64]) -> Array:
    facts = model_facts(simulated.checkpoint.config)
    return Emulation(simulated.checkpoint, facts, known=device_weights(simulated)).logits(ids)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wformat", FOUR_BIT)
def test_logits_are_those_of_the_emulation_with_the_devices_weights(
    wformat: str, size: str, family: str, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path, family, initializer_range=0.04, **SIZES[size])
    ids = tokens(40)
    simulated = simulate(tmp_path, formats=format_plan(wformat, None, ""))
    logits = simulated.feed(ids)
    assert cosines(logits, emulated(simulated, ids)).min() > 0.9995
    assert cosines(logits, logits_of(model, ids)).mean() > 0.94


@pytest.mark.parametrize("mix", ["mlp@1-2=fp4", "head=int4,down=nvfp4,attn@0-0=fp4", "gateup=int4,down@2-2=int8"])
def test_layers_may_differ(mix: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", initializer_range=0.04, num_hidden_layers=3, head_dim=64)
    ids = tokens(40)
    simulated = simulate(tmp_path, formats=format_plan("mix", None, mix))
    logits = simulated.feed(ids)
    assert cosines(logits, emulated(simulated, ids)).min() > 0.9995


FAMILY_MIXES = {
    "gemma4, windows of 100, own and shared keys, two sizes of heads": "attn@2-5=fp4,mlp@4-8=fp4,ple=nvfp4,head=fp4",
    "lfm2, heads of 64, four taps with biases": "conv=fp4,mlp@1-1=nvfp4",
    "phi3, LongRoPE on three quarters of a head": "mlp@1-29=fp4",
    "qwen3.5, two value heads for a key head": "delta=fp4,mlp=fp4",
    "smollm3, every fourth layer without positions": "gateup@3-35=fp4,down@0-4=int4",
}


@pytest.mark.parametrize("name", FAMILY_MIXES)
def test_every_family_takes_its_mixes(name: str, tmp_path: Path) -> None:
    """As near to transformers as so small layers can be, and the same bits whatever the chunks."""
    family, changes = FAMILY_MODELS[name]
    model = save_tiny_model(tmp_path, family, initializer_range=0.04, **changes)
    ids = tokens(40)
    simulated = simulate(tmp_path, formats=format_plan("mix", None, FAMILY_MIXES[name]), num_slots=1)
    logits = simulated.feed(ids, chunk=32)
    assert cosines(logits, logits_of(model, ids)).mean() > 0.9
    np.testing.assert_array_equal(simulated.feed(ids, chunk=7), logits)


@pytest.mark.parametrize("wformat", FOUR_BIT)
def test_prefill_in_chunks_is_token_by_token_to_the_bit(wformat: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3", initializer_range=0.04, head_dim=64)
    ids = tokens(21)
    simulated = simulate(tmp_path, formats=format_plan(wformat, None, ""))
    one_by_one = simulated.feed(ids, chunk=1)
    for chunk in (2, 5, 64):
        np.testing.assert_array_equal(simulated.feed(ids, slot=1, chunk=chunk), one_by_one)


@pytest.mark.parametrize("wformat", FOUR_BIT)
def test_the_board_pairs_and_computes_the_same_but_for_the_order_of_sums(wformat: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", initializer_range=0.04, **SIZES["odd blocks"])
    ids = tokens(24)
    plan = format_plan(wformat, None, "")
    paired = simulate(tmp_path, machine=BOARD, formats=plan, paired=True)
    assert paired.device.capabilities.max_rows == BOARD.mcols // 2
    logits = paired.feed(ids)
    plain = simulate(tmp_path, machine=BOARD, formats=plan, image=tmp_path / "plain.img").feed(ids)
    assert (logits != plain).any()
    assert cosines(logits, plain).min() > 0.9999
    assert cosines(logits, emulated(paired, ids)).min() > 0.9995
    np.testing.assert_array_equal(paired.feed(ids, slot=1, chunk=1), logits)


def test_the_reference_computes_the_same_bits_with_pair(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1, head_dim=64)
    ids = tokens(3)
    logits = {
        kind: simulate(tmp_path, kind=kind, machine=BOARD, formats=FormatPlan(FP4), paired=True, capacity=256).feed(ids)
        for kind in ("reference", "native")
    }
    np.testing.assert_array_equal(logits["reference"], logits["native"])
