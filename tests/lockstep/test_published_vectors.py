"""Every machine computes the published vectors, through the instructions that use the functions."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.fleet import Fleet, native_fleet
from npuserve.isa.fields import Value
from npuserve.isa.machine import WIDE
from npuserve.isa.spec import BMode, VectorFunction, encode
from npuserve.sim.native import available
from small_machine import Words

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

VECTORS = np.load(Path(__file__).parents[1] / "data" / "elementwise.npz")
A, B, OUT = 0x10000, 0x20000, 0x30000
ELEMENTWISE = {
    "exp2": VectorFunction.EXP2,
    "recip": VectorFunction.RECIP,
    "rsqrt": VectorFunction.RSQRT,
    "log2": VectorFunction.LOG2,
    "copy": VectorFunction.COPY,
    "abs": VectorFunction.ABS,
    "add": VectorFunction.ADD,
    "sub": VectorFunction.SUB,
    "mul": VectorFunction.MUL,
    "max": VectorFunction.MAX,
    "min": VectorFunction.MIN,
    "exp2sub": VectorFunction.EXP2SUB,
}
SUM_LENGTHS = [int(name.split("/")[1]) for name in VECTORS.files if name.startswith("isum64") and name.endswith("/a")]


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return native_fleet(WIDE, 1 << 16)


def results(fleet: Fleet, a: Words, b: Words, count: int, *program: list[int]) -> dict[str, Words]:
    """Words from OUT on, by machine, after the program ran with `a` at A and `b` at B."""
    found = {}
    for name, machine in fleet.machines.items():
        machine.write_tmem(A, a.ravel())
        machine.write_tmem(B, b.ravel())
        machine.load(np.array([*program, encode("HALT")], np.uint32))
        machine.run()
        found[name] = machine.read_tmem(OUT, count)
    return found


def vop(function: VectorFunction, **operands: Value) -> list[int]:
    places: dict[str, Value] = {"func": function, "dst": OUT, "a": A, "b": B}
    return encode("VOP", **places | operands)


def expect(found: dict[str, Words], expected: NDArray[np.generic]) -> None:
    for name, words in found.items():
        assert np.array_equal(words, expected.ravel().view(np.uint32)), name


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_function(fleet: Fleet, name: str) -> None:
    a = VECTORS[f"{name}/a"]
    b = VECTORS[f"{name}/b"] if f"{name}/b" in VECTORS.files else np.zeros_like(a)
    expect(results(fleet, a, b, a.size, vop(ELEMENTWISE[name], rows=1, cols=a.size)), VECTORS[f"{name}/out"])


def test_reversed_subtraction_and_fill(fleet: Fleet) -> None:
    a, b = VECTORS["sub/a"], VECTORS["sub/b"]
    expect(results(fleet, b, a, a.size, vop(VectorFunction.RSUB, rows=1, cols=a.size)), VECTORS["sub/out"])
    expect(
        results(fleet, b, VECTORS["copy/a"], a.size, vop(VectorFunction.FILL, rows=1, cols=a.size)), VECTORS["copy/out"]
    )


def test_outer(fleet: Fleet) -> None:
    """One instruction of one element for each vector, 512 of them a program."""
    a, b, c, d = (VECTORS[f"outer/{letter}"] for letter in "abcd")
    for start in range(0, 4096, 512):
        part = slice(start, start + 512)
        program = []
        for row in range(512):
            places: dict[str, Value] = {"dst": OUT + row, "a": A + row, "b": B + row, "imm": A + 512 + row}
            program.append(encode("VOP", func=VectorFunction.OUTER, **places, rows=1, cols=1, bmode=int(BMode.PER_ROW)))
        load = encode("VOP", func=VectorFunction.COPY, dst=OUT, a=A + 1024, rows=1, cols=512)
        memory = np.concatenate([d[part], c[part], a[part]])
        expect(results(fleet, memory, b[part], 512, load, *program), VECTORS["outer/out"][part])


@pytest.mark.parametrize("length", SUM_LENGTHS)
def test_vector_sum(fleet: Fleet, length: int) -> None:
    a = VECTORS[f"isum64/{length}/a"]
    program = vop(VectorFunction.RSUM, rows=len(a), cols=length, ars=length, drs=1)
    expect(results(fleet, a, a, len(a), program), VECTORS[f"isum64/{length}/out"])


def test_integer_conversions(fleet: Fleet) -> None:
    """i2f by ARGMAX over one column, whose base is the integer; f2i by RLD."""
    integers, reals = VECTORS["i2f/a"], VECTORS["f2i/a"]
    argmax = [
        vop(VectorFunction.ARGMAX, dst=OUT + 2 * i, rows=1, cols=1, imm=int(value)) for i, value in enumerate(integers)
    ]
    found = results(fleet, integers, integers, 2 * integers.size, *argmax)
    expect({name: words[1::2] for name, words in found.items()}, VECTORS["i2f/out"])
    for machine in fleet.machines.values():
        machine.write_tmem(A, reals)
        for start in range(0, reals.size, 15):
            count = min(15, reals.size - start)
            loads = [encode("RLD", rd=1 + i, src=A + start + i) for i in range(count)]
            machine.load(np.array([*loads, encode("HALT")], np.uint32))
            machine.run()
            expected = VECTORS["f2i/out"][start : start + count].view(np.uint32)
            assert np.array_equal(machine.registers()[1 : 1 + count], expected)


@pytest.mark.parametrize("row_scale", [0, 1])
def test_quantized_groups(fleet: Fleet, row_scale: int) -> None:
    a, codes, scales = (VECTORS[f"quantize/{part}"] for part in ("a", "q", "s"))
    for start in range(0, 256, 64):
        part = slice(start, start + 64)
        for name, machine in fleet.machines.items():
            machine.write_tmem(A, a[part].ravel())
            quantize = encode("QACT", src=A, rows=64, kb=1, srs=128, row_scale=row_scale)
            machine.load(np.array([quantize, encode("HALT")], np.uint32))
            machine.run()
            got_codes, got_scales = machine.read_act()
            assert np.array_equal(got_codes[:, :128], codes[part]), name
            assert np.array_equal(got_scales[:, 0], scales[part]), name
