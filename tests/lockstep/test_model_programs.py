"""The programs of whole models, step by step, on the reference and the native machine."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.fleet import native_fleet
from lockstep.lockstep_machine import LockstepMachine
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.core import Row
from npuserve.devices.otpu import OtpuDevice
from npuserve.isa.machine import BOARD, WIDE, MachineConfig
from npuserve.models.registry import model_facts
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import build_image
from npuserve.program.tmem import most_rows
from npuserve.sim.link import SimulatorLink
from npuserve.sim.native import available
from tiny_checkpoint import tiny_config, write_checkpoint

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

CAPACITY = 256
MODELS = {
    "llama": tiny_config("llama"),
    "qwen2": tiny_config("qwen2", tie_word_embeddings=True),
    "qwen3": tiny_config("qwen3", hidden_size=160, head_dim=64, num_attention_heads=4),
}


def open_device(folder: Path, name: str, machine: MachineConfig) -> tuple[OtpuDevice, LockstepMachine]:
    checkpoint = open_checkpoint(write_checkpoint(folder, MODELS[name]))
    facts = model_facts(checkpoint.config)
    geometry = Geometry(facts, CAPACITY)
    dram = DramLayout(geometry, 2, min(40, most_rows(geometry, machine)))
    image = build_image(folder / "device.img", "test", checkpoint, facts, dram, lambda done, total: None)
    lockstep = LockstepMachine(native_fleet(machine, dram.size, threads=(2,)))
    return OtpuDevice(SimulatorLink(lockstep, machine), machine, dram, image, "lockstep"), lockstep


@pytest.mark.parametrize("machine", [WIDE, BOARD], ids=lambda machine: machine.name)
@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_of_a_model(name: str, machine: MachineConfig, tmp_path: Path) -> None:
    """Prefill in chunks beyond one attention block, decode, and steps that mix both with a second slot."""
    device, lockstep = open_device(tmp_path, name, machine)
    tokens = np.random.default_rng(1).integers(0, 300, 300).tolist()
    width = device.capabilities.max_rows
    for start in range(0, 140, width):
        device.step([Row(0, start + i, tokens[start + i], i == width - 1) for i in range(width)])
    position = -(-140 // width) * width
    device.step([Row(0, position, 5, True)])
    device.step([Row(0, position + 1, 7, True), *(Row(1, i, tokens[i], True) for i in range(width - 1))])
    device.step([Row(1, width - 1, 9, True)])
    assert lockstep.num_runs > 140 // width
    device.close()
