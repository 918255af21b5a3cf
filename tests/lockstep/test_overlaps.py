"""Single instructions whose operands lie on top of each other: the same results, or a fault from everybody."""

import numpy as np
import pytest

from lockstep.fleet import Fleet, Memory, assert_lockstep, native_fleet
from lockstep.random_words import random_words
from npuserve.isa.fields import Value
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import VectorFunction, encode
from npuserve.sim.native import available

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

CROWDED = MachineConfig("crowded", depth=32, mcols=6, act_rows=8, act_blocks=4, tmem_words=4096, dram_bytes=4096)
NUM_PROGRAMS = 250


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return native_fleet(CROWDED, CROWDED.dram_bytes)


def near(rng: np.random.Generator, place: int) -> int:
    """A place on, just beside or somewhere around `place`."""
    return max(0, place + int(rng.choice([0, 0, 0, 1, -1, 2, -2, 8, -8, 16, *rng.integers(-200, 200, 3)])))


def vop(rng: np.random.Generator) -> list[int]:
    cols = int(rng.choice([1, 2, 3, 7, 8, 9, 16, 17, 30, 64, 65, 100]))
    rows = int(rng.choice([1, 1, 2, 3, 5, 9]))
    strides = [0, 1, 2, cols - 1, cols, cols, cols, cols + 1, 2 * cols]
    a = int(rng.integers(0, 1500))
    operands: dict[str, Value] = {"a": a, "dst": near(rng, a), "b": near(rng, a), "rows": rows, "cols": cols}
    operands |= {name: int(rng.choice(strides)) for name in ("drs", "ars", "brs")}
    operands |= {"dscalar": int(rng.integers(0, 2)), "done": int(rng.integers(0, 2))}
    bmode = int(rng.integers(0, 4))
    if rng.random() < 0.25:
        return encode("VOP", **operands, func=VectorFunction.OUTER, bmode=1, imm=near(rng, a))
    return encode("VOP", **operands, func=int(rng.choice(list(VectorFunction))), bmode=bmode)


def gather(rng: np.random.Generator) -> list[int]:
    cols = int(rng.choice([1, 2, 5, 16, 33]))
    src = int(rng.integers(0, 1500))
    operands: dict[str, Value] = {"src": src, "dst": near(rng, src + int(rng.choice([0, cols, -cols, 300])))}
    operands |= {name: int(rng.choice([0, 1, cols, cols + 1, 2 * cols, 3 * cols])) for name in ("srs", "drs")}
    return encode("GATHER", **operands, rows=int(rng.integers(1, 7)), cols=cols)


def qst(rng: np.random.Generator) -> list[int]:
    kb, dst = int(rng.integers(1, 4)), int(rng.integers(0, 1500))
    row_scale = int(rng.integers(0, 2))
    operands: dict[str, Value] = {
        "src": int(rng.integers(0, 1500)),
        "dst": dst,
        "sdst": near(rng, dst) // 4 * 4,
        "kb": kb,
    }
    operands |= {"srs": int(rng.choice([0, 7, 32 * kb])), "drs": int(rng.choice([0, 1, 3, 31, 32 * kb, 100]))}
    operands |= {"es": int(rng.choice([0, 1, 1, 2, 5, 8])), "half": row_scale * int(rng.integers(0, 2))}
    return encode("QST", **operands, rows=int(rng.integers(1, 5)), row_scale=row_scale)


def mm(rng: np.random.Generator) -> list[int]:
    n, kb, out = int(rng.choice([1, 5, 16, 17, 33])), int(rng.integers(1, 5)), int(rng.integers(0, 1500))
    operands: dict[str, Value] = {"n": n, "kb": kb, "out": out, "m": int(rng.integers(1, 9))}
    operands |= {"ors": int(rng.choice([0, 1, 2, n - 1, n, n, n + 1])), "rs": 32 * int(rng.integers(0, 3))}
    operands |= {name: int(rng.integers(0, 2)) for name in ("acc", "rmax")}
    if rng.random() < 0.4:
        return encode("MM", **operands | {"acc": 1}, unit=1, ascale=1, ssa=near(rng, out))
    scales: dict[str, Value] = {"ssa": 4 * int(rng.integers(0, 300)), "srs": 4 * int(rng.integers(0, 5))}
    return encode("MM", **operands, **scales, sa=32 * int(rng.integers(0, 20)))


DRAWS = {"vop": vop, "gather": gather, "qst": qst, "mm": mm}


def run_many(fleet: Fleet, name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, *name.encode()])
    codes = rng.integers(-127, 128, (CROWDED.act_rows, CROWDED.act_blocks * CROWDED.depth), np.int8)
    scales = random_words(rng, CROWDED.act_rows * CROWDED.act_blocks, 0.0).reshape(CROWDED.act_rows, -1)
    num_faults = 0
    for _ in range(NUM_PROGRAMS):
        dram = {0: random_words(rng, CROWDED.dram_bytes // 4, 0.0).view(np.uint8)}
        memory = Memory(dram, random_words(rng, CROWDED.tmem_words, 0.01), (codes, scales))
        program = np.array([DRAWS[name](rng), encode("HALT")], np.uint32)
        num_faults += assert_lockstep(fleet, program, memory=memory).fault_pc is not None
    assert num_faults < NUM_PROGRAMS * 0.9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWS)
def test_overlapping_operands(fleet: Fleet, name: str, seed: int) -> None:
    run_many(fleet, name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_many_overlapping_operands(fleet: Fleet, name: str) -> None:
    for seed in range(100, 150):
        run_many(fleet, name, seed)
