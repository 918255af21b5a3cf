"""The delta rule by DSTEP and by vector instructions: the same logits to the bit, however a conversation is fed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from full_size_models import FULL_SIZE_MODELS
from npuserve.core import Row
from npuserve.isa.machine import BOARD, WIDE, MachineConfig
from npuserve.isa.spec import BY_NAME
from npuserve.program.decoder import build
from npuserve.program.tmem import Shape
from npuserve.sim.native import available
from random_checkpoint import write_random_checkpoint
from simulated_device import Logits, Simulated, simulate

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

MODEL = FULL_SIZE_MODELS["qwen35"] | {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 48,
    "vocab_size": 300,
}
LENGTH = 90
TOKENS: NDArray[np.int64] = np.random.default_rng(1).integers(0, 300, LENGTH)
DSTEP = BY_NAME["DSTEP"].opcode


def without(machine: MachineConfig) -> MachineConfig:
    return replace(machine, dstep=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("delta"), MODEL)


@pytest.fixture(scope="module")
def by_steps(folder: Path) -> Simulated:
    return simulate(folder, capacity=300, num_slots=3)


@pytest.fixture(scope="module")
def expected(by_steps: Simulated) -> Logits:
    """Token by token."""
    return by_steps.feed(TOKENS, chunk=1)


def assert_same_bits(got: Logits, right: Logits) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), right.view(np.uint32))


def uses_dstep(simulated: Simulated, machine: MachineConfig) -> bool:
    program = build(simulated.dram, Shape(2, 2, 1), machine)
    return bool((program[:, 0] & 0xFF == DSTEP).any())


def test_programs_use_it_where_the_machine_has_it(by_steps: Simulated) -> None:
    assert uses_dstep(by_steps, WIDE)
    assert not uses_dstep(by_steps, without(WIDE))


@pytest.mark.parametrize("sizes", [{"linear_key_head_dim": 96}, {"linear_value_head_dim": 264}])
def test_heads_of_other_sizes_go_without(tmp_path: Path, sizes: dict[str, int]) -> None:
    simulated = simulate(write_random_checkpoint(tmp_path, MODEL | sizes), capacity=256)
    assert not uses_dstep(simulated, WIDE)


@pytest.mark.parametrize("chunk", [2, 7, 64])
def test_a_prompt_in_chunks_gives_the_same_bits(by_steps: Simulated, expected: Logits, chunk: int) -> None:
    assert_same_bits(by_steps.feed(TOKENS, slot=1, chunk=chunk), expected)


@pytest.mark.parametrize("machine", [WIDE, BOARD], ids=lambda machine: machine.name)
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_vector_instructions_give_the_same_bits(
    folder: Path, expected: Logits, machine: MachineConfig, chunk: int
) -> None:
    simulated = simulate(folder, machine=without(machine), capacity=300, num_slots=1)
    assert_same_bits(simulated.feed(TOKENS, chunk=chunk), expected)


@pytest.mark.parametrize("machine", [BOARD, without(BOARD)], ids=["with", "without"])
def test_the_reference_machine_gives_the_same_bits(folder: Path, expected: Logits, machine: MachineConfig) -> None:
    simulated = simulate(folder, kind="reference", machine=machine, capacity=300, num_slots=1)
    assert_same_bits(simulated.feed(TOKENS[:12]), expected[:12])


def test_a_saved_context_goes_on_where_the_machine_has_no_dstep(
    folder: Path, by_steps: Simulated, expected: Logits
) -> None:
    """The states of both are the same, and so are the formats of their pages."""
    other = simulate(folder, machine=without(WIDE), capacity=300, num_slots=1)
    assert other.device.capabilities.page_format == by_steps.device.capabilities.page_format
    by_steps.feed(TOKENS[:50], slot=2, chunk=20)
    other.device.restore(0, 0, [by_steps.device.save(2, 0)])
    assert_same_bits(other.feed(TOKENS[50:], start=50), expected[50:])


def test_rows_of_other_slots_change_nothing(by_steps: Simulated, expected: Logits) -> None:
    """Slot 0 is fed in chunks while two others decode: programs with several segments."""
    device = by_steps.device
    for step in range(6):
        start = 5 * step
        rows = [Row(1, step, int(TOKENS[step]), True)]
        rows += [Row(0, start + index, int(token), True) for index, token in enumerate(TOKENS[start : start + 5])]
        rows += [Row(2, step, int(TOKENS[step]), True)]
        assert_same_bits(device.step(rows).logits, expected[[step, *range(start, start + 5), step]])
