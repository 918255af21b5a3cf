"""The simulator's register file, against the card manual."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.drivers.registers import CARD_ID, Caps, Control, Register, Status
from npuserve.errors import DeviceError, MachineFault
from npuserve.isa.spec import encode
from npuserve.sim.link import UNDEFINED, SimulatorLink
from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, at

PROGRAM_ADDRESS = 0x1000


@pytest.fixture
def link() -> SimulatorLink:
    return SimulatorLink(ReferenceMachine(SMALL, SMALL_DRAM_BYTES), SMALL)


def status(link: SimulatorLink) -> Status:
    return Status(link.read_register(Register.STATUS))


def load(link: SimulatorLink, *instructions: list[int]) -> None:
    words = np.array([*instructions], np.uint32)
    link.write_dram(PROGRAM_ADDRESS, words.view(np.uint8).reshape(-1))
    link.write_register(Register.PROG_ADDR, PROGRAM_ADDRESS)
    link.write_register(Register.PROG_N, len(instructions))
    link.write_register(Register.CTRL, Control.LOAD)


def run(link: SimulatorLink) -> None:
    link.write_register(Register.CTRL, Control.RUN)
    link.write_register(Register.CTRL, 0)


def words_at(link: SimulatorLink, address: int, count: int) -> NDArray[np.uint32]:
    return link.read_dram(address, 4 * count).view(np.uint32)


def store_argument(number: int, address: int) -> list[list[int]]:
    """DRAM word at `address` = the float that argument `number` points to in DRAM."""
    return [
        encode("LD", src=at(8 + number), dst=0, count=1),
        encode("ST", src=0, dst=address, count=1),
        encode("HALT"),
    ]


def test_it_introduces_itself_as_the_card(link: SimulatorLink) -> None:
    assert link.read_register(Register.ID) == CARD_ID
    assert link.read_register(Register.VERSION) == 32 << 16 | 4 << 8 | 8
    assert link.read_register(Register.ACT_ROWS) == 6
    assert link.read_register(Register.REGMAP) == 3
    assert Caps(link.read_register(Register.CAPS)) & Caps.GEN


def test_it_claims_the_instructions_that_the_machine_has(link: SimulatorLink) -> None:
    assert Caps(link.read_register(Register.CAPS)) & (Caps.DSTEP | Caps.STREAM) == Caps.DSTEP
    without = replace(SMALL, dstep=False)
    plain = SimulatorLink(ReferenceMachine(without, SMALL_DRAM_BYTES), without)
    assert not Caps(plain.read_register(Register.CAPS)) & (Caps.DSTEP | Caps.STREAM)


@pytest.mark.parametrize("offset", [0x050, 0x0FC, 0x100, 0x200, 0xFFC])
def test_an_undefined_register_reads_as_on_the_card(link: SimulatorLink, offset: int) -> None:
    assert link.read_register(offset) == UNDEFINED == 0xDEAD_BEEF


@pytest.mark.parametrize(
    "register", [Register.PROG_ADDR, Register.PROG_N, Register.SCRATCH, *range(Register.ARG0, Register.ARG0 + 32, 4)]
)
def test_writable_registers_start_at_zero_and_keep_their_value(link: SimulatorLink, register: int) -> None:
    assert link.read_register(register) == 0
    link.write_register(register, 0x1234_5678)
    assert link.read_register(register) == 0x1234_5678


@pytest.mark.parametrize(
    "register", [Register.ID, Register.VERSION, Register.STATUS, Register.ICOUNT, 0x07C + 4, 0x800]
)
def test_other_registers_cannot_be_written(link: SimulatorLink, register: int) -> None:
    before = link.read_register(register)
    with pytest.raises(DeviceError, match=f"register {register:#x} cannot be written"):
        link.write_register(register, 1)
    assert link.read_register(register) == before


def test_it_is_halted_idle_and_calibrated_from_the_start(link: SimulatorLink) -> None:
    assert status(link) == Status.HALTED | Status.WR_IDLE | Status.CALIB0 | Status.CALIB1


def test_a_loaded_program_runs_with_the_arguments(link: SimulatorLink) -> None:
    load(link, *store_argument(3, 0x2000))
    link.write_dram(0x3000, np.array([77], np.uint32).view(np.uint8))
    link.write_register(Register.ARG0 + 12, 0x3000)
    run(link)
    assert words_at(link, 0x2000, 1).tolist() == [77]
    assert status(link) & (Status.HALTED | Status.ERROR | Status.RUN) == Status.HALTED
    assert link.read_register(Register.ICOUNT) == 3


def test_a_program_stays_loaded_when_its_dram_is_overwritten(link: SimulatorLink) -> None:
    load(link, *store_argument(0, 0x2000))
    link.write_dram(PROGRAM_ADDRESS, np.full(96, 0xFF, np.uint8))
    run(link)
    run(link)
    assert link.read_register(Register.ICOUNT) == 3


def test_a_load_in_the_same_write_as_run_is_ignored(link: SimulatorLink) -> None:
    load(link, encode("HALT"))
    link.write_dram(PROGRAM_ADDRESS, np.array([encode("NOP"), encode("HALT")], np.uint32).view(np.uint8).reshape(-1))
    link.write_register(Register.PROG_N, 2)
    link.write_register(Register.CTRL, Control.LOAD | Control.RUN)
    assert link.read_register(Register.ICOUNT) == 1


def test_a_broken_rule_sets_error_and_says_where(link: SimulatorLink) -> None:
    load(link, encode("NOP"), encode("LD", src=2, dst=0, count=1), encode("HALT"))
    with pytest.raises(MachineFault, match="pc 1"):
        run(link)
    assert Status.ERROR in status(link)
    assert Status.HALTED in status(link)


def test_the_next_run_clears_the_error(link: SimulatorLink) -> None:
    load(link, encode("LD", src=2, dst=0, count=1))
    with pytest.raises(MachineFault):
        run(link)
    link.write_register(Register.CTRL, 0)
    load(link, encode("HALT"))
    run(link)
    assert Status.ERROR not in status(link)


def test_a_file_fills_card_memory(link: SimulatorLink, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 3 * 4096, np.uint8)
    file = tmp_path / "image"
    file.write_bytes(data.tobytes())
    link.load_file(file, 4096, 8192, 0x4000)
    np.testing.assert_array_equal(link.read_dram(0x4000, 8192), data[4096:])
    assert not link.read_dram(0x6000, 4096).any()


def test_a_file_that_is_too_short_is_an_error(link: SimulatorLink, tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(bytes(5000))
    with pytest.raises(DeviceError, match=r"image: .* 5000 bytes"):
        link.load_file(file, 0, 8192, 0)


def test_closing_twice_is_fine(link: SimulatorLink) -> None:
    link.close()
    link.close()
