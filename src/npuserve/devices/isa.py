"""Opening the `isa` backend: checkpoint to image (built once), image to a device on the native simulator."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.devices.otpu import OtpuDevice
from npuserve.home import cache_folder as user_cache
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.models.facts import ModelFacts
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import stored_formats
from npuserve.models.weight_formats import FormatPlan, describe_formats, format_label, with_formats
from npuserve.program.dram import DramLayout
from npuserve.program.fitted_layout import fitted_layout, shortfall
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image, Progress, build_image, image_key, open_image
from npuserve.program.tmem import most_rows

PAIRED_MCOLS = 4
"""On a machine with so few columns 4-bit weights stream at half speed unless PAIR has a column take two blocks."""


@dataclass(frozen=True, slots=True)
class IsaSettings:
    """`num_threads` 0 means all cores; `cache` is the folder of built images."""

    num_slots: int = 8
    context_length: int = 2048
    num_threads: int = 0
    machine: MachineConfig = WIDE
    cache: Path | None = None
    formats: FormatPlan = field(default_factory=FormatPlan)


def cache_folder() -> Path:
    """Where images are kept: $NPUSERVE_CACHE, else npuserve/images in the user's cache folder."""
    if chosen := os.environ.get("NPUSERVE_CACHE"):
        return Path(chosen)
    return user_cache() / "npuserve" / "images"


def open_isa_device(
    checkpoint: Checkpoint,
    settings: IsaSettings,
    progress: Callable[[], Progress] | None = None,
    notice: Callable[[str], None] | None = None,
) -> OtpuDevice:
    """A ready device. `progress` is called when an image has to be built, and what it returns as the build goes on.

    The context is the smaller of the settings' and the model's; `notice` gets a line where card memory holds fewer
    slots, or a shorter context, than the settings say. Raises CheckpointError for a checkpoint that cannot be served,
    ConfigError for formats that do not fit the model, ProgramError when it does not fit the machine,
    DeviceUnavailableError without the native core.
    """
    from npuserve.sim.native import native_link

    dram = device_layout(checkpoint, settings, notice)
    link = native_link(settings.machine, dram.size, settings.num_threads)
    path = image_path(checkpoint, dram.geometry.facts, settings.cache or cache_folder())
    image = cached_image(path, checkpoint, dram, progress)
    device = OtpuDevice(link, settings.machine, dram, image, "isa")
    device.warm_up()
    return device


def device_layout(
    checkpoint: Checkpoint, settings: IsaSettings, notice: Callable[[str], None] | None = None
) -> DramLayout:
    """Where the device has the model; arguments and errors are those of `open_isa_device`."""
    paired = settings.machine.mcols <= PAIRED_MCOLS
    facts = model_facts(checkpoint.config)
    facts = with_formats(facts, settings.formats, paired=paired, stored=stored_formats(checkpoint, facts))
    geometry = Geometry(facts, min(settings.context_length, facts.context_length))
    num_slots = 1 if facts.has_state else settings.num_slots
    dram = fitted_layout(geometry, num_slots, most_rows(geometry, settings.machine))
    if notice and (line := shortfall(dram, num_slots, geometry.capacity)):
        notice(line)
    return dram


def image_path(checkpoint: Checkpoint, facts: ModelFacts, folder: Path) -> Path:
    """One file per checkpoint path and weight formats; its key says whether it still fits."""
    place = blake2b(str(checkpoint.path.resolve()).encode(), digest_size=4).hexdigest()
    return folder / f"{checkpoint.name}-{place}.{format_label(facts)}.img"


def cached_image(
    path: Path, checkpoint: Checkpoint, dram: DramLayout, progress: Callable[[], Progress] | None = None
) -> Image:
    """The image at `path` if it was built from this checkpoint, else a new one."""
    facts = dram.geometry.facts
    key = image_key(checkpoint, describe_formats(facts))
    if image := open_image(path, key, facts):
        return image
    return build_image(path, key, checkpoint, facts, dram, progress() if progress else lambda done, total: None)
