"""What the native machine has beyond the reference: kernel sets, mapped images, packed copies, profiles."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import DeviceUnavailableError, MachineFault, ProgramError
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.isa.spec import encode
from npuserve.sim import native
from npuserve.sim.native import NativeMachine, native_link

PAGE = 4096
DRAM_BYTES = 1 << 22
SMALL = MachineConfig("small", mcols=4, act_rows=4, tmem_words=1 << 14, imem_instructions=64)

needs_core = pytest.mark.skipif(not native.available(), reason="the native core is not built")


def program(*instructions: list[int]) -> NDArray[np.uint32]:
    return np.array([*instructions, encode("HALT")], np.uint32)


@pytest.fixture
def machine() -> NativeMachine:
    return NativeMachine(SMALL, DRAM_BYTES)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(range(256)) * 48)
    return path


def test_missing_extension_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "npuserve.sim._native", None)
    assert not native.available()
    with pytest.raises(DeviceUnavailableError, match=r"install g\+\+.*the clone"):
        NativeMachine(SMALL)


@needs_core
def test_each_kernel_set_can_be_chosen_by_name() -> None:
    assert "generic" in native.kernel_sets()
    for name in native.kernel_sets():
        assert NativeMachine(SMALL, DRAM_BYTES, kernels=name).kernels == name


@needs_core
def test_unknown_kernel_set_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel set"):
        NativeMachine(SMALL, DRAM_BYTES, kernels="abacus")


@needs_core
def test_mapped_image_shows_the_file_and_leaves_it_alone(machine: NativeMachine, image: Path) -> None:
    before = image.read_bytes()
    machine.map_image(image, file_offset=PAGE, num_bytes=2 * PAGE - 100, address=3 * PAGE)
    assert machine.read_dram(3 * PAGE, 2 * PAGE - 100).tobytes() == before[PAGE : 3 * PAGE - 100]
    assert not machine.read_dram(5 * PAGE - 100, 200).any()
    machine.write_dram(3 * PAGE, np.full(200, 9, np.uint8))
    assert machine.read_dram(3 * PAGE, 200).tobytes() == b"\x09" * 200
    assert image.read_bytes() == before


@needs_core
def test_image_that_is_missing_short_or_misplaced_is_refused(machine: NativeMachine, image: Path) -> None:
    with pytest.raises(FileNotFoundError):
        machine.map_image(image.with_name("none"), file_offset=0, num_bytes=PAGE, address=0)
    with pytest.raises(ValueError, match="shorter"):
        machine.map_image(image, file_offset=PAGE, num_bytes=3 * PAGE, address=0)
    with pytest.raises(ValueError, match="4096"):
        machine.map_image(image, file_offset=0, num_bytes=PAGE, address=100)
    with pytest.raises(ProgramError, match="outside"):
        machine.map_image(image, file_offset=0, num_bytes=PAGE, address=DRAM_BYTES)


@needs_core
def test_weights_of_a_mapped_image_stay_right_after_their_pages_are_dropped(tmp_path: Path) -> None:
    # 512 KiB: large enough to be treated as weights, whose file pages are given back once they are packed.
    rows, blocks = 1024, 4
    weights = np.random.default_rng(3).integers(0, 256, rows * blocks * SMALL.depth, np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(weights.tobytes())
    machine = NativeMachine(SMALL, DRAM_BYTES)
    machine.map_image(path, file_offset=0, num_bytes=weights.size, address=0)
    machine.prepare(sa=0, rs=blocks * SMALL.depth, n=rows, kb=blocks, unit=True)
    assert machine.packed_bytes >= weights.size
    np.testing.assert_array_equal(machine.read_dram(0, weights.size), weights)


@needs_core
def test_dram_view_is_live_and_read_only(machine: NativeMachine) -> None:
    view = machine.dram_view(64, 16)
    machine.write_dram(64, np.arange(16, dtype=np.uint8))
    assert view.tolist() == list(range(16))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del machine
    assert view[15] == 15


@needs_core
def test_prepare_refuses_what_mm_would_refuse(machine: NativeMachine) -> None:
    with pytest.raises(MachineFault, match="multiples of 128"):
        machine.prepare(sa=4, rs=128, n=1, kb=1, unit=True)


@needs_core
def test_no_room_for_packed_copies_changes_no_result() -> None:
    results = []
    for shadow_bytes in (0, 1 << 30):
        machine = NativeMachine(SMALL, DRAM_BYTES, shadow_bytes=shadow_bytes)
        rng = np.random.default_rng(1)
        machine.write_dram(0, rng.integers(0, 256, 1 << 20, np.uint8))
        machine.write_tmem(0, rng.standard_normal(512).astype(np.float32).view(np.uint32))
        use = encode("MM", sa=0, out=1024, n=2000, kb=4, m=1, rs=512, ors=2000, unit=1, acc=1)
        machine.load(program(encode("QACT", src=0, rows=1, kb=4), encode("LOOP", body=1, count=3), use))
        machine.run()
        assert (machine.packed_bytes > 0) == (shadow_bytes > 0)
        results.append(machine.read_tmem(1024, 2000))
    np.testing.assert_array_equal(results[0], results[1])


@needs_core
def test_profile_counts_instructions_by_kind(machine: NativeMachine) -> None:
    machine.set_profiling(True)
    machine.load(program(encode("LOOP", body=1, count=5), encode("VOP", func=3, rows=1, cols=64, bmode=3)))
    machine.run()
    counts = {line.name: line.count for line in machine.profile()}
    assert counts == {"LOOP": 1, "VOP MUL": 5, "HALT": 1}
    assert machine.retired == 7


@needs_core
def test_fault_says_where_and_what(machine: NativeMachine) -> None:
    machine.load(program(encode("NOP"), encode("LD", src=2, dst=0, count=1)))
    with pytest.raises(MachineFault, match="not a multiple of 4") as caught:
        machine.run()
    assert caught.value.pc == 1
    assert caught.value.instruction.startswith("LD")
    assert machine.retired == 1


@needs_core
def test_link_maps_its_image_file(image: Path) -> None:
    link = native_link(WIDE, DRAM_BYTES, 1)
    link.load_file(image, PAGE, PAGE, 0)
    assert link.read_dram(0, PAGE).tobytes() == image.read_bytes()[PAGE : 2 * PAGE]
