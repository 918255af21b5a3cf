"""Cards that lack what a model's weight formats need are refused, and images of other formats are not taken."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from four_bit_checkpoint import drawn_matrices, raw_tensors, write_raw_checkpoint
from memory_link import MemoryLink
from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.devices.isa import IsaSettings, cached_image, image_path, open_isa_device
from npuserve.devices.otpu import OtpuDevice
from npuserve.drivers.registers import Caps, Extensions, Register, extensions_word
from npuserve.errors import DeviceUnavailableError
from npuserve.isa.machine import BOARD, WIDE, MachineConfig
from npuserve.models.registry import model_facts
from npuserve.models.stored_formats import stored_formats
from npuserve.models.weight_formats import format_plan, with_formats
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image
from npuserve.program.tmem import most_rows
from npuserve.sim.native import available
from tiny_checkpoint import random_tensors, tiny_config, write_checkpoint
from tiny_tokenizer import tiny_tokenizer

ALL = Caps.GEN | Caps.W4 | Caps.PAIR


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), tiny_config())
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    return open_checkpoint(folder)


def layout(
    checkpoint: Checkpoint, wformat: str, head: str | None, machine: MachineConfig, *, paired: bool
) -> DramLayout:
    facts = with_formats(model_facts(checkpoint.config), format_plan(wformat, head, ""), paired=paired)
    geometry = Geometry(facts, 256)
    return DramLayout(geometry, 1, most_rows(geometry, machine))


def open_with(link: MemoryLink, dram: DramLayout, machine: MachineConfig = WIDE) -> OtpuDevice:
    """The image's contents do not matter to a card of plain memory."""
    facts = dram.geometry.facts
    image = Image(Path("none"), dram.image_bytes, cached_embedding(facts.vocab_size, facts.hidden_size))
    return OtpuDevice(link, machine, dram, image, "test")


def cached_embedding(rows: int, columns: int) -> NDArray[np.float32]:
    return np.zeros((rows, columns), np.float32)


@pytest.mark.parametrize(("wformat", "head"), [("fp4", None), ("int4", "int8"), ("int8", "fp4")])
def test_four_bit_weights_need_a_card_that_multiplies_them(
    checkpoint: Checkpoint, wformat: str, head: str | None
) -> None:
    dram = layout(checkpoint, wformat, head, WIDE, paired=False)
    open_with(MemoryLink(dram.size, caps=Caps.GEN | Caps.W4), dram)
    with pytest.raises(DeviceUnavailableError, match=r"lacks W4.*--wformat int8"):
        open_with(MemoryLink(dram.size, caps=Caps.GEN), dram)


def test_paired_weights_need_pair(checkpoint: Checkpoint) -> None:
    dram = layout(checkpoint, "fp4", None, BOARD, paired=True)
    assert dram.max_rows == BOARD.mcols // 2
    open_with(MemoryLink(dram.size, caps=ALL), dram, BOARD)
    with pytest.raises(DeviceUnavailableError, match="lacks PAIR"):
        open_with(MemoryLink(dram.size, caps=Caps.GEN | Caps.W4), dram, BOARD)


def test_nvfp4_needs_our_extension(checkpoint: Checkpoint) -> None:
    dram = layout(checkpoint, "int8", "nvfp4", WIDE, paired=False)
    for word in (0xDEAD_BEEF, 0, 0xFFFF_FFFF, extensions_word(Extensions(0))):
        link = MemoryLink(dram.size, caps=ALL)
        link.registers[Register.EXTENSIONS] = word
        with pytest.raises(DeviceUnavailableError, match="cannot multiply with nvfp4 weights"):
            open_with(link, dram)
    link = MemoryLink(dram.size, caps=ALL)
    link.registers[Register.EXTENSIONS] = extensions_word(Extensions.NVFP4)
    open_with(link, dram)


def test_checkpoints_in_four_bits_need_what_their_formats_need(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    tensors, drams = random_tensors(config), {}
    for layout, kind in (("modelopt", "nvfp4"), ("mxfp4-pack-quantized", "mxfp4")):
        quantized = drawn_matrices(tensors, kind)
        write_raw_checkpoint(tmp_path / kind, config, raw_tensors(tensors, quantized, layout), layout)
        checkpoint, facts = open_checkpoint(tmp_path / kind), model_facts(config)
        facts = with_formats(facts, format_plan("auto", None, ""), stored=stored_formats(checkpoint, facts))
        drams[kind] = DramLayout(Geometry(facts, 256), 1, 4)
    with pytest.raises(DeviceUnavailableError, match=r"cannot multiply with nvfp4 weights.*serve with --wformat fp4"):
        open_with(MemoryLink(drams["nvfp4"].size, caps=ALL), drams["nvfp4"])
    open_with(MemoryLink(drams["mxfp4"].size, caps=ALL), drams["mxfp4"])


@pytest.mark.skipif(not available(), reason="the native core is not built")
def test_the_isa_backend_takes_over_what_the_checkpoint_has(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    tensors = random_tensors(config)
    quantized = drawn_matrices(tensors, "nvfp4")
    folder = write_raw_checkpoint(tmp_path / "m", config, raw_tensors(tensors, quantized, "modelopt"), "modelopt")
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    formats = {}
    for wformat in ("auto", "int8"):
        settings = IsaSettings(1, 256, 1, cache=tmp_path / "cache", formats=format_plan(wformat, None, ""))
        device = open_isa_device(open_checkpoint(folder), settings)
        formats[wformat] = device.capabilities.page_format
        device.close()
    assert "own" in formats["auto"]
    assert "own" not in formats["int8"]
    assert len(list((tmp_path / "cache").glob("*.img"))) == 2


def test_pages_of_other_formats_are_foreign(checkpoint: Checkpoint) -> None:
    formats = [("int8", None, False), ("fp4", None, False), ("fp4", None, True), ("fp4", "int8", False)]
    layouts = [layout(checkpoint, wformat, head, WIDE, paired=paired) for wformat, head, paired in formats]
    pages = {open_with(MemoryLink(dram.size, caps=ALL), dram).capabilities.page_format for dram in layouts}
    assert len(pages) == len(formats)


def test_each_format_has_an_image_of_its_own(checkpoint: Checkpoint, tmp_path: Path) -> None:
    images = {}
    for wformat, head in (("int8", None), ("fp4", None), ("int4", None), ("nvfp4", None), ("fp4", "int8")):
        dram = layout(checkpoint, wformat, head, WIDE, paired=False)
        path = image_path(checkpoint, dram.geometry.facts, tmp_path)
        images[path] = cached_image(path, checkpoint, dram).image_bytes
    assert len(images) == 5
    sizes = list(images.values())
    assert max(sizes[1:]) < sizes[0]
    assert sorted(path.suffixes[-2] for path in list(images)[:4]) == [".fp4", ".int4", ".int8", ".nvfp4"]


def test_an_image_of_another_format_at_the_same_place_is_built_anew(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "one.img"
    first = layout(checkpoint, "fp4", None, WIDE, paired=False)
    second = layout(checkpoint, "int4", None, WIDE, paired=False)
    assert first.image_bytes == second.image_bytes
    built = cached_image(path, checkpoint, first).path.stat().st_ino
    assert cached_image(path, checkpoint, first).path.stat().st_ino == built
    assert cached_image(path, checkpoint, second).path.stat().st_ino != built
