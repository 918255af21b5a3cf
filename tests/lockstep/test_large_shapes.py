"""Shapes large enough that a machine divides them between threads; overlaps that must not be divided."""

import numpy as np
import pytest

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words
from npuserve.isa.fields import Value
from npuserve.isa.machine import WIDE
from npuserve.isa.spec import VectorFunction, encode
from npuserve.sim.native import available

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

DRAM_BYTES = 4 << 20
SCALES = 3 << 20
HALF = 1 << 19


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return native_fleet(WIDE, DRAM_BYTES, threads=(1, 2, 3))


@pytest.fixture(scope="module")
def memory() -> Memory:
    rng = np.random.default_rng(8)
    codes = rng.integers(-127, 128, (WIDE.act_rows, WIDE.act_blocks * WIDE.depth), np.int8)
    scales = random_words(rng, WIDE.act_rows * WIDE.act_blocks, 0.0).reshape(WIDE.act_rows, -1)
    weights = rng.integers(0, 256, SCALES, np.uint8)
    weight_scales = random_words(rng, (DRAM_BYTES - SCALES) // 4, 0.001).view(np.uint8)
    return Memory({0: weights, SCALES: weight_scales}, random_words(rng, WIDE.tmem_words, 0.001), (codes, scales))


def run(fleet: Fleet, memory: Memory, *instructions: list[int]) -> None:
    outcome = assert_lockstep(fleet, np.array([*instructions, encode("HALT")], np.uint32), memory=memory)
    assert outcome.retired == len(instructions) + 1


@pytest.mark.parametrize("m", [1, 2, 7, 64])
@pytest.mark.parametrize(("n", "kb"), [(6000, 3), (1541, 12), (8191, 1)])
def test_matrix(fleet: Fleet, memory: Memory, n: int, kb: int, m: int) -> None:
    operands: dict[str, Value] = {"n": n, "kb": kb, "m": m, "rs": 128 * kb, "srs": 4 * kb, "ors": n}
    plain = encode("MM", **operands, ssa=SCALES, out=HALF, rmax=1)
    factors = encode("MM", **operands, ssa=5, out=HALF, unit=1, acc=1, ascale=1)
    overlapping = encode("MM", **operands | {"ors": n - 9}, ssa=SCALES, out=HALF, acc=1)
    run(fleet, memory, plain, plain, factors, factors, overlapping)


@pytest.mark.parametrize("m", [1, 7, 32])
@pytest.mark.parametrize("wf", [1, 2, 3], ids=["int4", "fp4", "nvfp4"])
@pytest.mark.parametrize(("n", "kb"), [(6000, 3), (1541, 12)])
def test_four_bit_matrix(fleet: Fleet, memory: Memory, n: int, kb: int, wf: int, m: int) -> None:
    operands: dict[str, Value] = {"n": n, "kb": kb, "m": m, "rs": 64 * (kb + kb % 2), "ors": n, "wf": wf}
    operands |= {"srs": 8 * kb + 8 if wf == 3 else 8 * (kb // 2 + 1)}
    plain = encode("MM", **operands, ssa=SCALES, out=HALF, rmax=1)
    factors = encode("MM", **operands, ssa=5, out=HALF, unit=1, acc=1, ascale=1)
    paired = encode("MM", **operands, ssa=SCALES, out=HALF, acc=1, pair=1)
    run(fleet, memory, plain, plain, factors, factors, paired, paired)


@pytest.mark.parametrize("function", [f for f in VectorFunction if f is not VectorFunction.OUTER], ids=lambda f: f.name)
def test_vector_function(fleet: Fleet, memory: Memory, function: VectorFunction) -> None:
    wide: dict[str, Value] = {"rows": 3, "cols": 40_000, "drs": 40_000, "ars": 40_000, "brs": 40_000}
    tall: dict[str, Value] = {"rows": 900, "cols": 130, "drs": 131, "ars": 129, "brs": 7}
    program = []
    for mode, shape in enumerate((wide, tall, wide, tall)):
        place: dict[str, Value] = {"dst": HALF + 200_000 * (mode % 2), "a": 3, "b": 200_001}
        program.append(encode("VOP", func=function, **place, **shape, bmode=mode, imm=0x3FC0_0000))
    run(fleet, memory, *program)


@pytest.mark.parametrize("shift", [0, 1, 5, 16, 40_000])
def test_shifting_down_in_place(fleet: Fleet, memory: Memory, shift: int) -> None:
    shape: dict[str, Value] = {"rows": 3, "cols": 40_000, "drs": 40_000, "ars": 40_000}
    run(
        fleet,
        memory,
        encode("VOP", func=VectorFunction.COPY, dst=70_000 - shift, a=70_000, **shape),
        encode("VOP", func=VectorFunction.ADD, dst=300_000 - shift, a=500_000, b=300_000, **shape, brs=40_000),
        encode("VOP", func=VectorFunction.RSUM, dst=70_000, a=70_000, rows=900, cols=130, ars=130, drs=1),
    )


def test_results_that_overlap_each_other(fleet: Fleet, memory: Memory) -> None:
    shape: dict[str, Value] = {"rows": 700, "cols": 150, "ars": 150}
    program = [encode("VOP", func=VectorFunction.EXP2, dst=HALF, a=9, **shape, drs=drs) for drs in (0, 1, 64, 149, 150)]
    run(fleet, memory, *program)


def test_outer(fleet: Fleet, memory: Memory) -> None:
    shape: dict[str, Value] = {"rows": 600, "cols": 256, "drs": 257, "brs": 1, "bmode": 1}
    program = [
        encode("VOP", func=VectorFunction.OUTER, dst=HALF, a=10, b=400_000, imm=HALF + 30, **shape, **flags)
        for flags in ({}, {"dscalar": 1}, {"done": 1})
    ]
    run(fleet, memory, *program)


def test_quantizer_and_moves(fleet: Fleet, memory: Memory) -> None:
    quantize = encode("QACT", src=7, rows=64, kb=100, ab=28, srs=9000, use_cscale=1, cscale=600_000)
    by_row = encode("QACT", src=8, rows=60, kb=128, srs=15_000, row_scale=1, use_rscale=1, rscale=600_000)
    column = encode("QST", src=11, rows=200, kb=12, srs=1600, dst=1, drs=1, sdst=SCALES, es=1024)
    plain = encode("QST", src=11, rows=600, kb=12, srs=1600, dst=77, drs=1536, sdst=SCALES, es=1, row_scale=1)
    moves = [
        encode("LD", src=4, dst=HALF, count=400_000),
        encode("ST", src=HALF - 5, dst=8, count=500_000),
        encode("GATHER", src=0, dst=HALF, rows=500, cols=700, srs=900, drs=701),
    ]
    run(fleet, memory, quantize, by_row, column, plain, *moves)
