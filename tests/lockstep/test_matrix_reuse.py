"""MM in lockstep where a machine may have kept weights in another form, and something changed them since."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words
from npuserve.isa.fields import Value
from npuserve.isa.machine import WIDE, MachineConfig
from npuserve.isa.spec import encode
from npuserve.sim.native import NativeMachine, available

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

DRAM_BYTES = 1 << 19
SCALES = 0x40000
SHALLOW = MachineConfig("shallow", depth=32, mcols=64, act_rows=64, act_blocks=64, tmem_words=1 << 14)
SHAPES = [(1, 1, 1), (16, 2, 1), (17, 3, 4), (33, 5, 3), (48, 12, 8), (50, 4, 64), (15, 7, 17), (70, 1, 5)]
OUT = 4096


@pytest.fixture(scope="module", params=[WIDE, SHALLOW], ids=lambda config: config.name)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return native_fleet(request.param, DRAM_BYTES, shadow_bytes=(None, 0, 30_000))


def memory(
    fleet: Fleet, seed: int, shape: tuple[int, int, int], zeros: int, wildness: float, scales_a_row: int | None = None
) -> Memory:
    """Weights at 0, of which the last `zeros` bytes of each row are zero; scales at SCALES."""
    rng = np.random.default_rng(seed)
    config, (n, kb, _) = fleet.config, shape
    weights = rng.integers(0, 256, (n, kb * config.depth), np.uint8)
    weights[:, kb * config.depth - zeros :] = 0
    codes = rng.integers(-127, 128, (config.act_rows, config.act_blocks * config.depth), np.int8)
    act_scales = random_words(rng, config.act_rows * config.act_blocks, wildness).reshape(config.act_rows, -1)
    scales = random_words(rng, n * (scales_a_row or kb), wildness).view(np.uint8)
    dram = {0: weights.ravel(), SCALES: scales}
    return Memory(dram, random_words(rng, config.tmem_words, wildness), (codes, act_scales))


def multiply(fleet: Fleet, shape: tuple[int, int, int], **more: Value) -> list[int]:
    n, kb, m = shape
    operands: dict[str, Value] = {"n": n, "kb": kb, "m": m, "rs": kb * fleet.config.depth, "srs": 4 * kb}
    return encode("MM", **{"ssa": SCALES, "out": OUT, "ors": n} | operands | more)


def program(*instructions: list[int]) -> NDArray[np.uint32]:
    return np.array([*instructions, encode("HALT")], np.uint32)


@pytest.mark.parametrize("wildness", [0.0, 0.3])
@pytest.mark.parametrize("zeros", [0, 1, 28, 32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_repeated_use_gives_the_same_sums(
    fleet: Fleet, shape: tuple[int, int, int], zeros: int, wildness: float
) -> None:
    start = memory(fleet, 1, shape, zeros, wildness)
    assert_lockstep(fleet, program(multiply(fleet, shape)), memory=start)
    body = multiply(fleet, shape, acc=1, rmax=1)
    for _ in range(2):
        assert_lockstep(fleet, program(encode("LOOP", body=1, count=3), body))


WRITES = {
    "ST of a weight": encode("ST", dst=16 * 4, src=0, count=1),
    "ST of a scale": encode("ST", dst=SCALES + 4, src=0, count=1),
    "ST of everything": encode("ST", dst=0, src=0, count=4096),
    "QST of weights": encode("QST", dst=5, sdst=0x60000, src=0, rows=1, kb=1, es=1),
    "QST of a column": encode("QST", dst=3, sdst=0x60000, src=0, rows=1, kb=1, es=32),
    "QST of scales": encode("QST", dst=0x60000, sdst=SCALES, src=0, rows=1, kb=1, es=1),
}


@pytest.mark.parametrize("shape", [(17, 3, 4), (48, 12, 1)], ids=str)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_written_weights_and_scales_are_seen(fleet: Fleet, shape: tuple[int, int, int], write: list[int]) -> None:
    use = [encode("LOOP", body=2, count=3), multiply(fleet, shape), encode("NOP")]
    again = multiply(fleet, shape, out=OUT + 4000)
    assert_lockstep(fleet, program(*use, write, again, write, again), memory=memory(fleet, 2, shape, 0, 0.0))


def test_weights_written_by_the_host_are_seen(fleet: Fleet) -> None:
    shape = (33, 5, 3)
    for seed in range(3):
        start = memory(fleet, seed, shape, zeros=seed, wildness=0.0)
        assert_lockstep(fleet, program(multiply(fleet, shape), multiply(fleet, shape)), memory=start)
        for address in (0, 700, SCALES):
            change = Memory({address: np.arange(40 + seed, 44 + seed, dtype=np.uint8)})
            assert_lockstep(fleet, program(multiply(fleet, shape)), memory=change)


def test_weights_packed_ahead_are_dropped_when_they_change(fleet: Fleet) -> None:
    n, kb, m = 33, 5, 3
    use = program(multiply(fleet, (n, kb, m)))
    for machine in fleet.machines.values():
        memory(fleet, 5, (n, kb, m), zeros=9, wildness=0.0).write_to(machine)
        if isinstance(machine, NativeMachine):
            machine.prepare(sa=0, rs=kb * fleet.config.depth, ssa=SCALES, srs=4 * kb, n=n, kb=kb)
    assert_lockstep(fleet, use)
    for address in (3, SCALES + 8):
        assert_lockstep(fleet, use, memory=Memory({address: np.array([99, 98], np.uint8)}))


def test_the_same_weights_serve_in_other_shapes(fleet: Fleet) -> None:
    shape = (48, 4, 2)
    depth = fleet.config.depth
    views: list[dict[str, Value]] = [
        {},
        {"n": 20},
        {"kb": 2},
        {"kb": 3, "ab": 1},
        {"sa": 4 * depth},
        {"sa": depth, "kb": 3},
        {"rs": 8 * depth, "n": 24},
        {"rs": 0},
        {"rs": depth},
        {"ssa": SCALES + 4},
        {"srs": 0},
        {"srs": 4},
        {"unit": 1},
        {"n": 1},
        {"n": 47, "m": 64},
    ]
    uses = [multiply(fleet, shape, **view) for view in views * 2]
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(len(uses))
        chosen = [uses[index] for index in order]
        assert_lockstep(fleet, program(*chosen, *chosen), memory=memory(fleet, 3, shape, 20, 0.01))
        for use in chosen:
            assert_lockstep(fleet, program(use, use))


@pytest.mark.parametrize("pair", [0, 1])
@pytest.mark.parametrize("wildness", [0.0, 0.3])
@pytest.mark.parametrize("wf", [1, 2, 3], ids=["int4", "fp4", "nvfp4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_four_bit_weights_give_the_same_sums(
    fleet: Fleet, shape: tuple[int, int, int], wf: int, wildness: float, pair: int
) -> None:
    _, kb, m = shape
    words = 2 * kb + 2 if wf == 3 else kb + kb % 2
    view: dict[str, Value] = {"rs": -(-kb // 2) * fleet.config.depth, "srs": 4 * words, "wf": wf, "pair": pair}
    view |= {"m": min(m, fleet.config.mcols // 2)} if pair else {}
    start = memory(fleet, 7, shape, 0, wildness, scales_a_row=words)
    use = multiply(fleet, shape, **view)
    assert_lockstep(fleet, program(use, use, multiply(fleet, shape, **view, unit=1)), memory=start)
    body = multiply(fleet, shape, **view, acc=1, rmax=1)
    assert_lockstep(fleet, program(encode("LOOP", body=1, count=3), body))


@pytest.mark.parametrize("wf", [1, 2, 3], ids=["int4", "fp4", "nvfp4"])
def test_changes_of_four_bit_weights_and_scales_are_seen(fleet: Fleet, wf: int) -> None:
    """The last code, the last scale word of a row, and the same bytes read as another format in between."""
    n, kb, _ = shape = (33, 5, 3)
    words = 2 * kb + 2 if wf == 3 else kb
    depth = fleet.config.depth
    use = multiply(fleet, shape, rs=3 * depth, srs=4 * words, wf=wf)
    other = multiply(fleet, shape, rs=3 * depth, srs=4 * words, wf=1 + wf % 2)
    start = memory(fleet, 8, shape, 0, 0.0, scales_a_row=words)
    assert_lockstep(fleet, program(use, use, other, other, use), memory=start)
    last_code = (n - 1) * 3 * depth + 5 * depth // 2 - 1
    last_scale = SCALES + 4 * ((n - 1) * words + (2 * kb if wf == 3 else kb - 1))
    for address in (last_code, last_scale):
        change = Memory({address // 4 * 4: np.array([1, 2, 3, 0x41], np.uint8)})
        assert_lockstep(fleet, program(use, use, other), memory=change)
        assert_lockstep(fleet, program(use, other, use))
