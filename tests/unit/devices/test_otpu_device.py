"""The device over a link of plain memory: what it writes, how it judges the card, which rows it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from memory_link import MemoryLink
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.core import Row
from npuserve.devices.otpu import OtpuDevice
from npuserve.drivers.registers import Caps, Control, Register, Status
from npuserve.errors import DeviceError, DeviceUnavailableError
from npuserve.isa.machine import WIDE
from npuserve.models.registry import model_facts
from npuserve.program.dram import BEAT, PAGE, DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image, build_image
from tiny_checkpoint import tiny_config, write_checkpoint

VOCAB = 300
CONFIG = tiny_config(vocab_size=VOCAB)
DRAM = DramLayout(Geometry(model_facts(CONFIG), 500), num_slots=3, max_rows=8)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("model")
    checkpoint = open_checkpoint(write_checkpoint(folder, CONFIG))
    facts = model_facts(CONFIG)
    return build_image(folder / "x.img", "key", checkpoint, facts, DRAM, lambda done, total: None)


@pytest.fixture
def link() -> MemoryLink:
    return MemoryLink(DRAM.size)


@pytest.fixture
def device(link: MemoryLink, image: Image) -> OtpuDevice:
    device = OtpuDevice(link, WIDE, DRAM, image, "test")
    link.forget()
    return device


def prompt(slot: int, count: int, start: int = 0, *, want: bool = True) -> list[Row]:
    return [Row(slot, start + index, index, want) for index in range(count)]


def put_logits(link: MemoryLink, rows: int) -> NDArray[np.float32]:
    """Distinct logits where a run of `rows` logit rows would leave them."""
    logits = np.arange(rows * VOCAB, dtype=np.float32).reshape(rows, VOCAB)
    link.dram[DRAM.logits : DRAM.logits + logits.nbytes] = logits.view(np.uint8).reshape(-1)
    return logits


def test_capabilities_are_those_of_the_layout(device: OtpuDevice) -> None:
    can = device.capabilities
    assert (can.name, can.num_slots, can.max_rows, can.context_length, can.vocab_size) == ("test", 3, 8, 500, VOCAB)
    assert not can.recurrent


def test_the_image_is_loaded_from_its_second_page(device: OtpuDevice, link: MemoryLink, image: Image) -> None:
    assert link.loaded_files == [(image.path, PAGE, DRAM.image_bytes, 0)]


def test_another_card_is_refused_with_its_id(image: Image) -> None:
    with pytest.raises(DeviceUnavailableError, match="reads 0xdeadbeef, not 0x4f545055"):
        OtpuDevice(MemoryLink(DRAM.size, card_id=0xDEAD_BEEF), WIDE, DRAM, image, "test")


def test_a_card_image_without_the_needed_instructions_is_refused_by_name(image: Image) -> None:
    with pytest.raises(DeviceUnavailableError, match="lacks GEN"):
        OtpuDevice(MemoryLink(DRAM.size, caps=Caps.WAITW), WIDE, DRAM, image, "test")


def test_a_run_follows_the_card_manual(device: OtpuDevice, link: MemoryLink) -> None:
    device.step(prompt(0, 2))
    assert link.controls == [Control.LOAD, Control.CLEAR, Control.RUN, Control(0)]
    assert link.registers[Register.PROG_ADDR] == DRAM.programs
    program = link.dram[DRAM.programs :].view(np.uint32).reshape(-1, 8)[: link.registers[Register.PROG_N]]
    assert program[-1, 0] & 0xFF == 0x01


def test_the_host_is_free_when_all_is_written_and_the_run_is_about_to_begin(
    device: OtpuDevice, link: MemoryLink
) -> None:
    seen: list[tuple[list[Control], int]] = []
    device.step(prompt(0, 2), lambda: seen.append((list(link.controls), len(link.written))))
    assert seen == [([Control.LOAD, Control.CLEAR], len(link.written))]


def test_a_program_is_loaded_only_when_the_shape_changes(device: OtpuDevice, link: MemoryLink) -> None:
    for start in (0, 4, 8):
        device.step(prompt(1, 4, start))
    for position in range(3):
        device.step(prompt(0, 1, position))
    device.step(prompt(1, 4, 12))
    assert link.controls.count(Control.LOAD) == 3


def test_everything_written_is_whole_beats_inside_the_card(device: OtpuDevice, link: MemoryLink) -> None:
    device.step([*prompt(0, 5), *prompt(1, 1), *prompt(2, 1, 7)])
    device.step(prompt(2, 1, 8))
    for address, size in link.written:
        assert address % BEAT == 0
        assert size % BEAT == 0
        assert address + size <= DRAM.size


def test_logits_come_in_the_order_of_the_rows(device: OtpuDevice, link: MemoryLink) -> None:
    """The prompt segment runs first, wherever it stands, so its logits do too."""
    logits = put_logits(link, 5)
    result = device.step([*prompt(0, 1), *prompt(1, 3), *prompt(2, 1)])
    np.testing.assert_array_equal(result.logits, logits[[3, 0, 1, 2, 4]])


def test_only_wanted_logits_come_back(device: OtpuDevice, link: MemoryLink) -> None:
    logits = put_logits(link, 3)
    rows = [*prompt(1, 3, want=False), Row(1, 3, 5, True), Row(0, 0, 5, False), Row(2, 0, 5, True)]
    np.testing.assert_array_equal(device.step(rows).logits, logits[[0, 2]])


def test_a_step_that_wants_none_reads_none(device: OtpuDevice, link: MemoryLink) -> None:
    assert device.step(prompt(0, 4, want=False)).logits.shape == (0, VOCAB)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (Status.HALTED | Status.ERROR, "ERROR"),
        (Status.HALTED | Status.AXI_ERR, "AXI_ERR"),
        (Status.HALTED | Status.ERROR | Status.WAIT_TO, r"ERROR\|WAIT_TO"),
    ],
)
def test_a_run_that_ends_in_an_error_is_told_with_its_count(
    device: OtpuDevice, link: MemoryLink, status: Status, name: str
) -> None:
    link.outcome = status
    link.registers[Register.ICOUNT] = 1234
    with pytest.raises(DeviceError, match=f"stopped after 1234 instructions with {name}"):
        device.step(prompt(0, 1))
    assert link.controls[-1] == Control(0)


def test_the_card_serves_on_after_an_error(device: OtpuDevice, link: MemoryLink) -> None:
    link.outcome = Status.HALTED | Status.ERROR
    with pytest.raises(DeviceError):
        device.step(prompt(0, 1))
    link.outcome = Status.HALTED
    assert device.step(prompt(0, 1)).logits.shape == (1, VOCAB)


def test_a_run_that_does_not_end_is_stopped_and_told(
    device: OtpuDevice, link: MemoryLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is the number of STATUS reads here, ten seconds each."""
    link.outcome = None
    clock = SimpleNamespace(
        monotonic=lambda: link.num_status_reads * 10.0, sleep=lambda seconds: None, perf_counter=lambda: 0.0
    )
    monkeypatch.setattr("npuserve.devices.otpu.time", clock)
    with pytest.raises(DeviceError, match=r"did not reach HALTED within 60 s; its STATUS is .*RUN"):
        device.step(prompt(0, 1))
    assert link.controls[-1] == Control(0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "0 rows; this device takes 1 to 8"),
        (prompt(0, 9), "9 rows; this device takes 1 to 8"),
        ([Row(3, 0, 1, True)], "slot 3 does not exist; there are 3"),
        ([Row(-1, 0, 1, True)], "slot -1"),
        ([Row(0, 500, 1, True)], "position 500 is outside the context of 500"),
        ([Row(0, -1, 1, True)], "outside the context"),
        (prompt(0, 4, 498), "position 501 is outside the context of 500"),
        ([Row(0, 0, VOCAB, True)], "token ids go from 0 to 299"),
        ([Row(0, 0, -1, True)], "token ids go from 0 to 299"),
        ([Row(0, 0, 1, True), Row(0, 2, 1, True)], "position 2 does not follow"),
        ([Row(0, 0, 1, True), Row(1, 0, 1, True), Row(0, 1, 1, True)], "do not stand together"),
        ([*prompt(0, 2), *prompt(1, 2)], "2 slots have several rows each"),
    ],
)
def test_rows_that_break_a_rule_are_refused_before_anything_is_written(
    device: OtpuDevice, link: MemoryLink, rows: list[Row], message: str
) -> None:
    calls: list[int] = []
    with pytest.raises(ValueError, match=message):
        device.step(rows, lambda: calls.append(1))
    assert calls == []
    assert link.written == []
    assert link.controls == []


class LazyMemoryLink(MemoryLink):
    """Notes what it is told to expect."""

    def __init__(self, dram_bytes: int) -> None:
        super().__init__(dram_bytes)
        self.expected: list[tuple[int, int]] = []

    def expect(self, address: int, size: int) -> None:
        self.expected.append((address, size))


def test_memory_of_the_slots_is_prepared_once_the_device_is_warm(image: Image) -> None:
    link = LazyMemoryLink(DRAM.size)
    device = OtpuDevice(link, WIDE, DRAM, image, "test")
    assert link.expected == []
    device.warm_up()
    assert link.expected == [(DRAM.slots, 3 * DRAM.slot_stride)]


def test_closing_closes_the_link(device: OtpuDevice, link: MemoryLink) -> None:
    device.close()
    assert link.num_closes == 1
