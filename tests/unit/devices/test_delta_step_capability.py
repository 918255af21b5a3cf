"""Whether a card has DSTEP is read from it, and its programs are made accordingly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from full_size_models import FULL_SIZE_MODELS
from memory_link import MemoryLink
from npuserve.core import Row
from npuserve.devices.otpu import OtpuDevice
from npuserve.drivers.registers import Caps, Register
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.isa.spec import BY_NAME
from npuserve.models.registry import model_facts
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image

MODEL = FULL_SIZE_MODELS["qwen35"] | {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "vocab_size": 300,
}
DRAM = DramLayout(Geometry(model_facts(MODEL), 256), num_slots=1, max_rows=4)


def steps_of(caps: Caps, machine: MachineConfig) -> int:
    """DSTEPs in the program of one row."""
    link = MemoryLink(DRAM.size, caps=caps)
    image = Image(Path("none"), DRAM.image_bytes, np.zeros((300, 128), np.float32))
    OtpuDevice(link, machine, DRAM, image, "test").step([Row(0, 0, 1, True)])
    program = link.dram[DRAM.programs :].view(np.uint32).reshape(-1, 8)[: link.registers[Register.PROG_N]]
    return int((program[:, 0] & 0xFF == BY_NAME["DSTEP"].opcode).sum())


@pytest.mark.parametrize("machine", [WIDE, replace(WIDE, dstep=False)], ids=["with", "without"])
def test_a_card_without_dstep_is_not_asked_for_it(machine: MachineConfig) -> None:
    assert steps_of(Caps.GEN, machine) == 0
    assert steps_of(Caps.GEN | Caps.DSTEP, machine) == (16 if machine.dstep else 0)
