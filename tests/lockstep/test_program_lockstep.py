"""The programs that steps are made of end with the same memories on the reference and on every native machine."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.fleet import Fleet, assert_equal, assert_same_memory, native_fleet
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

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")


class Together:
    """All machines of a fleet as one: written alike, run alike, compared after every run."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.num_runs = 0

    def load_from_dram(self, address: int, count: int) -> None:
        for machine in self._fleet.machines.values():
            machine.load_from_dram(address, count)

    def run(self, args: Sequence[int] = ()) -> int:
        (_, first), *others = self._fleet.machines.items()
        retired = first.run(args)
        for name, machine in others:
            assert machine.run(args) == retired, name
            assert_equal(name, "R", np.asarray(machine.registers()), np.asarray(first.registers()))
            assert_same_memory(self._fleet, name)
        self.num_runs += 1
        return retired

    def read_dram(self, address: int, size: int) -> NDArray[np.uint8]:
        return next(iter(self._fleet.machines.values())).read_dram(address, size)

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        for machine in self._fleet.machines.values():
            machine.write_dram(address, data)


def rows_of(slot: int, start: int, count: int) -> list[Row]:
    tokens = np.random.default_rng([slot, start]).integers(0, 300, count)
    return [Row(slot, start + index, int(token), index % 2 == 0) for index, token in enumerate(tokens)]


STEPS: dict[str, list[list[Row]]] = {
    "one token, then another": [rows_of(0, 0, 1), rows_of(0, 1, 1)],
    "a prompt, then a mixed step": [rows_of(1, 0, 3), [*rows_of(0, 0, 2), *rows_of(1, 3, 1)]],
    "decode rows of three slots": [[*rows_of(0, 0, 1), *rows_of(2, 0, 1), *rows_of(1, 0, 1)]],
    "a prompt over the border of a block": [rows_of(0, 254, 4)],
    "decode at the border of a block": [[*rows_of(0, 255, 1), *rows_of(1, 256, 1)]],
    "the third block": [[*rows_of(2, 511, 3), *rows_of(1, 512, 1)]],
}


@pytest.mark.parametrize("machine", [WIDE, BOARD], ids=lambda machine: machine.name)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_memory_is_the_same_after_every_step(
    family: str, machine: MachineConfig, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(tiny_folder(family))
    facts = model_facts(checkpoint.config)
    geometry = Geometry(facts, 600)
    dram = DramLayout(geometry, num_slots=3, max_rows=min(8, most_rows(geometry, machine)))
    image = build_image(tmp_path / "x.img", "key", checkpoint, facts, dram, lambda done, total: None)
    together = Together(native_fleet(machine, dram.size))
    device = OtpuDevice(SimulatorLink(together, machine), machine, dram, image, "lockstep")
    before = together.num_runs
    for steps in STEPS.values():
        for step in steps:
            device.step(step)
    assert together.num_runs - before == sum(len(steps) for steps in STEPS.values())
