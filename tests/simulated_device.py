"""An OtpuDevice over a simulator, from a checkpoint folder; the machine stays in reach of the test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.core import Row
from npuserve.devices.otpu import OtpuDevice
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import stored_formats
from npuserve.models.weight_formats import FormatPlan, describe_formats, with_formats
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image, build_image, open_image
from npuserve.program.tmem import most_rows
from npuserve.sim.link import SimulatorLink
from npuserve.sim.native import available, native_link
from npuserve.sim.reference import ReferenceMachine

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Simulated:
    """A device with what it was made of."""

    device: OtpuDevice
    link: SimulatorLink
    dram: DramLayout
    checkpoint: Checkpoint
    image: Image

    @property
    def facts(self) -> ModelFacts:
        return self.dram.geometry.facts

    def feed(
        self, token_ids: Sequence[int] | NDArray[np.int64], *, slot: int = 0, start: int = 0, chunk: int | None = None
    ) -> Logits:
        """Logits of every token of one conversation, fed in chunks of at most `chunk` rows."""
        chunk = min(chunk or self.device.capabilities.max_rows, self.device.capabilities.max_rows)
        parts = []
        for first in range(0, len(token_ids), chunk):
            part = token_ids[first : first + chunk]
            rows = [Row(slot, start + first + index, int(token), True) for index, token in enumerate(part)]
            parts.append(self.device.step(rows).logits.copy())
        return np.concatenate(parts)


def simulate(
    path: Path,
    *,
    kind: str | None = None,
    machine: MachineConfig = WIDE,
    capacity: int = 512,
    num_slots: int = 2,
    max_rows: int | None = None,
    image: Path | None = None,
    key: str = "test",
    facts: ModelFacts | None = None,
    formats: FormatPlan | None = None,
    paired: bool = False,
) -> Simulated:
    """Build the image beside the checkpoint (or at `image`) unless one with this key is there; open a device on it.

    `kind` is reference or native; None takes the native machine where it is built. `facts` replace the checkpoint's.
    `formats` (None: int8) are those of the weights; with `paired` 4-bit ones are multiplied with PAIR.
    """
    checkpoint = open_checkpoint(path)
    facts = facts or model_facts(checkpoint.config)
    if formats is not None:
        facts = with_formats(facts, formats, paired=paired, stored=stored_formats(checkpoint, facts))
        key += describe_formats(facts)
    geometry = Geometry(facts, capacity)
    dram = DramLayout(geometry, num_slots, max_rows or most_rows(geometry, machine))
    file = image or path / "device.img"
    built = open_image(file, key, facts) or build_image(file, key, checkpoint, facts, dram, lambda done, total: None)
    kind = kind or ("native" if available() else "reference")
    if kind == "native":
        link: SimulatorLink = native_link(machine, dram.size)
    else:
        link = SimulatorLink(ReferenceMachine(machine, dram.size), machine)
    return Simulated(OtpuDevice(link, machine, dram, built, kind), link, dram, checkpoint, built)
