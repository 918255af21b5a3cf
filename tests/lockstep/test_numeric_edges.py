"""Long rows of edge values through each unit, in lockstep: underflow, cancelled sums, infinities, NaN."""

from collections.abc import Callable

import numpy as np
import pytest

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words, tiny_words, underflowing_words
from npuserve.isa.fields import Value
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import BMode, VectorFunction, encode
from npuserve.sim.native import available
from small_machine import Words

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

EDGE = MachineConfig("edge", mcols=64, act_rows=64, tmem_words=1 << 17, dram_bytes=1 << 17)
SCALES = 0x18000
Draw = Callable[[np.random.Generator, int], Words]
DRAWS: dict[str, Draw] = {
    "wild": lambda rng, count: random_words(rng, count, wildness=1.0),
    "some nan": lambda rng, count: random_words(rng, count, wildness=0.002),
    "underflowing": underflowing_words,
    "tiny": tiny_words,
}


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return native_fleet(EDGE, EDGE.dram_bytes)


def words_of(kind: str, seed: int, count: int) -> Words:
    return DRAWS[kind](np.random.default_rng(seed), count)


def run(fleet: Fleet, memory: Memory, *instructions: list[int]) -> None:
    outcome = assert_lockstep(fleet, np.array([*instructions, encode("HALT")], np.uint32), memory=memory)
    assert outcome.retired == len(instructions) + 1


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("function", [f for f in VectorFunction if f is not VectorFunction.OUTER], ids=lambda f: f.name)
def test_vector_function(fleet: Fleet, function: VectorFunction, kind: str) -> None:
    """Rows of many lengths and alignments; A and B in the lower half, results in the upper half of TMEM."""
    memory = Memory(tmem=words_of(kind, 1, EDGE.tmem_words))
    operands: dict[str, Value] = {"func": function, "imm": 0x1F80_0001}
    program, dst = [], 1 << 16
    for index, cols in enumerate((1, 5, 16, 31, 63, 64, 65, 127, 128, 129, 191, 192, 300, 1000)):
        for mode in BMode:
            shape: dict[str, Value] = {"rows": 7, "cols": cols, "drs": max(cols, 2), "ars": cols + index, "brs": cols}
            place: dict[str, Value] = {"dst": dst, "a": 100 * index + mode, "b": 30_000 + 77 * index}
            program.append(encode("VOP", **operands, **shape, **place, bmode=int(mode)))
        dst += 7 * max(cols, 2)
    run(fleet, memory, *program)


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("flags", [{}, {"dscalar": 1}, {"done": 1}], ids=str)
def test_outer(fleet: Fleet, flags: dict[str, Value], kind: str) -> None:
    program = [
        encode(
            "VOP", func=VectorFunction.OUTER, dst=60_000 + 3000 * index, a=index, b=1000, imm=2000, rows=9, cols=cols,
            drs=cols + index, brs=1, bmode=1, **flags,
        )
        for index, cols in enumerate((1, 3, 8, 16, 17, 64, 100, 255, 256))
    ]  # fmt: skip
    run(fleet, Memory(tmem=words_of(kind, 2, EDGE.tmem_words)), *program)


@pytest.mark.parametrize("kind", DRAWS)
def test_matrix_unit(fleet: Fleet, kind: str) -> None:
    """Weight scales, ACT scales, row factors and old results of the kind, so that terms underflow or turn to NaN."""
    rng = np.random.default_rng(3)
    codes = rng.integers(-127, 128, (64, 128 * 128), np.int8)
    codes[:, rng.random(128 * 128) < 0.9] = 0
    dram = {0: rng.integers(0, 256, SCALES, np.uint8), SCALES: words_of(kind, 4, 4096).view(np.uint8)}
    memory = Memory(dram, words_of(kind, 5, EDGE.tmem_words), (codes, words_of(kind, 6, 64 * 128).reshape(64, 128)))
    shapes = [(70, 5, 1), (33, 9, 2), (64, 12, 4), (17, 7, 33), (48, 3, 64)]
    program = []
    for n, kb, m in shapes:
        operands: dict[str, Value] = {"n": n, "kb": kb, "m": m, "rs": 128 * kb, "srs": 4 * kb, "ors": n, "ab": m % 3}
        for flags in ({}, {"acc": 1, "rmax": 1}, {"unit": 1}, {"unit": 1, "acc": 1, "ascale": 1, "rmax": 1}):
            ssa = 9 if "ascale" in flags else SCALES
            program += [encode("MM", **operands, **flags, ssa=ssa, out=40_000 + 100 * kb)] * 2
    run(fleet, memory, *program)


@pytest.mark.parametrize("kind", DRAWS)
def test_quantizer(fleet: Fleet, kind: str) -> None:
    program = []
    for flags in range(16):
        names = ("row_scale", "use_cscale", "use_rscale", "dup")
        chosen: dict[str, Value] = {name: flags >> bit & 1 for bit, name in enumerate(names)}
        place: dict[str, Value] = {"src": 333 * flags, "cscale": 50_000 + flags, "rscale": 60_000 + flags}
        program.append(encode("QACT", rows=30, kb=4, srs=512 - flags, ab=8 * flags, **chosen, **place))
    for row_scale, half in ((0, 0), (1, 0), (1, 1)):
        shape: dict[str, Value] = {"rows": 9, "kb": 4, "srs": 513, "drs": 1024 if half else 600, "es": 1 + half}
        place = {"src": 777, "dst": 5 + 20_000 * (row_scale + half), "sdst": SCALES + 512 * (row_scale + half)}
        program.append(encode("QST", **shape, **place, row_scale=row_scale, half=half))
    run(fleet, Memory(tmem=words_of(kind, 7, EDGE.tmem_words)), *program)
