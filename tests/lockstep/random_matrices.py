"""Weight matrices laid out in DRAM, and MM instructions that use and reuse them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.random_operands import Placer
from lockstep.random_words import random_words
from npuserve.isa.fields import Value
from npuserve.isa.spec import encode


@dataclass(frozen=True, slots=True)
class Matrix:
    """Places in DRAM bytes: `n` rows of `kb` blocks, `rs` apart, and their scales, `srs` apart."""

    sa: int
    ssa: int
    n: int
    kb: int
    rs: int
    srs: int
    wf: int


INT8, NVFP4 = 0, 3


def scale_bytes(wf: int, kb: int) -> int:
    """Bytes of a row's scales: a word a block, or two and the row's."""
    return 8 * kb + 4 if wf == NVFP4 else 4 * kb


def row_bytes(wf: int, kb: int, depth: int) -> int:
    return (kb if wf == INT8 else -(-kb // 2)) * depth


def lay_out(rng: np.random.Generator, dram: NDArray[np.uint8], depth: int, limit: int, wildness: float) -> list[Matrix]:
    """Fill `dram` below `limit` with some matrices: random bytes (-128 too), some with zeros at the rows' ends."""
    matrices = []
    address = 0
    for _ in range(5):
        wf = int(rng.choice([INT8, INT8, 1, 2, NVFP4]))
        kb, n = int(rng.integers(1, 13)), int(rng.choice([1, 3, 15, 16, 17, 31, 32, 33, 48, 50, 64, 70]))
        rs = row_bytes(wf, kb, depth) + int(rng.choice([0, 0, 0, 1])) * depth
        srs = scale_bytes(wf, kb) + 4 * int(rng.choice([0, 0, 1]))
        if wf != INT8 and (wf == NVFP4 or rng.random() < 0.7):
            srs = -(-srs // 8) * 8
        ssa = -(-(address + n * rs) // 64) * 64
        if ssa + n * srs > limit:
            break
        rows = dram[address : address + n * rs].reshape(n, rs)
        rows[:] = rng.integers(0, 256, rows.shape)
        zeros = int(rng.choice([0, 0, 3, depth // 2, depth - 28, depth, depth + 5]))
        rows[:, max(row_bytes(wf, kb, depth) - zeros, 0) :] = 0
        dram[ssa : ssa + n * srs] = random_words(rng, n * srs // 4, wildness).view(np.uint8)
        matrices.append(Matrix(address, ssa, n, kb, rs, srs, wf))
        address = -(-(ssa + n * srs) // depth) * depth
    return matrices


def mm(place: Placer, matrices: list[Matrix]) -> list[int]:
    """Mostly a whole matrix of the list, else a part of it, else any place."""
    matrix = matrices[place.number(0, len(matrices) - 1)]
    n = matrix.n
    operands: dict[str, Value] = {"kb": matrix.kb, "rs": matrix.rs, "srs": matrix.srs, "wf": matrix.wf}
    operands |= {"sa": place.dram_at(matrix.sa, place.config.depth), "ssa": place.dram_at(matrix.ssa, 4)}
    kind = place.number(0, 9)
    if kind in (0, 1):
        n = place.number(1, matrix.n)
        operands["kb"] = place.number(1, matrix.kb)
    elif kind == 2:
        row = place.number(0, matrix.n - 1)
        n = matrix.n - row
        operands["sa"] = place.dram_at(matrix.sa + row * matrix.rs, place.config.depth)
        operands["ssa"] = place.dram_at(matrix.ssa + row * matrix.srs, 4)
    elif kind == 3:
        n, kb, rs = place.number(1, 40), place.number(1, 6), place.config.depth * place.number(0, 6)
        wf = place.pick(matrix.wf, place.number(0, 3))
        operands |= {"kb": kb, "rs": rs, "srs": place.pick(0, 8, 4 * kb, 8 * kb + 8), "wf": wf}
        operands["sa"] = place.dram(n * rs + kb * place.config.depth, align=place.config.depth)[0]
        operands["ssa"] = place.dram(n * (8 * kb + 8), align=8)[0]
    return _with_output(place, operands, n)


def _with_output(place: Placer, operands: dict[str, Value], n: int) -> list[int]:
    config = place.config
    flags = {"unit": place.pick(0, 0, 0, 1), "acc": place.number(0, 1), "rmax": place.pick(0, 0, 1)}
    widest = config.mcols if flags["rmax"] or place.chance(0.2) else config.act_rows
    if place.chance(0.01 if operands["wf"] == INT8 else 0.4):
        flags["pair"] = 1
        widest = min(config.mcols, config.act_rows) // 2
    m = place.pick(1, 1, min(2, widest), min(4, widest), place.number(1, widest), widest)
    if place.chance(0.2) and m <= config.mcols:
        flags |= {"unit": 1, "acc": 1, "ascale": 1}
        operands["ssa"] = place.tmem(m)[0]
    ors = place.pick(n, n, n, n + 1, n + 13, 0, 1)
    out, _ = place.tmem(m * ors + max(n, m))
    return encode("MM", **operands, **flags, n=n, out=out, ors=ors, m=m, ab=place.number(0, 4))
