"""The hazard rule against its definition: elements one by one, remembering who wrote which word."""

import numpy as np
import pytest

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import BMode, VectorFunction, encode
from npuserve.sim import arithmetic
from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, Words, bits

FUNCTIONS = (VectorFunction.ADD, VectorFunction.COPY, VectorFunction.FILL, VectorFunction.RSUM, VectorFunction.ARGMAX)
WINDOW = 60


class _Hazard(Exception):  # noqa: N818
    """An element reads what an earlier one wrote."""


class _OneByOne:
    """VOP as a loop over elements p = r * cols + c, for the functions above."""

    def __init__(self, memory: Words, operands: dict[str, int]) -> None:
        self.memory = memory.copy()
        self.operands = operands
        self.writer: dict[int, int] = {}

    def read(self, address: int, p: int) -> int:
        if self.writer.get(address, p) < p:
            raise _Hazard
        return int(self.memory[address])

    def write(self, address: int, value: int, p: int) -> None:
        self.memory[address] = value
        self.writer.setdefault(address, p)

    def run(self) -> Words:
        for r in range(self.operands["rows"]):
            self.row(r)
        return self.memory

    def row(self, r: int) -> None:
        o = self.operands
        function, dst = o["func"], o["dst"] + r * o["drs"]
        seen = []
        for c in range(o["cols"]):
            p = r * o["cols"] + c
            a = 0 if function == VectorFunction.FILL else self.read(o["a"] + r * o["ars"] + c, p)
            b = self.read(self.place_of_b(r, c), p) if function in (VectorFunction.ADD, VectorFunction.FILL) else 0
            seen.append(a)
            if function < VectorFunction.RSUM:
                sum_of_both = arithmetic.add(np.array([a], np.uint32), np.array([b], np.uint32))
                self.write(dst + c, {0: int(sum_of_both[0]), 8: a, 13: b}[function], p)
        last = r * o["cols"] + o["cols"] - 1
        values = np.array([seen], np.uint32)
        if function == VectorFunction.RSUM:
            self.write(dst, int(arithmetic.vector_sum(values)[0]), last)
        elif function == VectorFunction.ARGMAX:
            column = int(np.argmax(arithmetic.order_key(values)))
            self.write(dst, seen[column], last)
            self.write(dst + 1, int(bits([column])[0]), last)

    def place_of_b(self, r: int, c: int) -> int:
        o = self.operands
        row = 0 if o["bmode"] == BMode.PER_COLUMN else r * o["brs"]
        return o["b"] + row + (0 if o["bmode"] == BMode.PER_ROW else c)


def random_operands(rng: np.random.Generator) -> dict[str, int]:
    cols, rows = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    strides = [0, 1, cols, cols, cols + 1, 2 * cols]
    function = int(rng.choice(FUNCTIONS))
    operands = {name: int(rng.choice(strides)) for name in ("drs", "ars", "brs")}
    operands |= {name: int(rng.integers(0, WINDOW - 40)) for name in ("dst", "a", "b")}
    if function == VectorFunction.ARGMAX:
        operands["drs"] = max(operands["drs"], 2)
    if rng.random() < 0.4:
        operands |= {"dst": operands["a"] + int(rng.integers(-1, 2)) if operands["a"] else 0, "drs": operands["ars"]}
        operands["drs"] = max(operands["drs"], 2) if function == VectorFunction.ARGMAX else operands["drs"]
    return operands | {"func": function, "rows": rows, "cols": cols, "bmode": int(rng.integers(0, 3))}


@pytest.mark.parametrize("seed", range(8))
def test_overlapping_operands_behave_as_element_by_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bench = Bench(ReferenceMachine(SMALL, SMALL_DRAM_BYTES))
    num_hazards = 0
    for _ in range(100):
        operands = random_operands(rng)
        memory = bits(rng.integers(-9, 10, WINDOW))
        bench.put_bits(0, memory)
        program: dict[str, Value] = dict(operands)
        try:
            expected = _OneByOne(memory, operands).run()
        except _Hazard:
            num_hazards += 1
            with pytest.raises(MachineFault, match="hazard"):
                bench.run(encode("VOP", **program))
        else:
            bench.run(encode("VOP", **program))
            assert np.array_equal(bench.get_bits(0, WINDOW), expected), operands
    assert 10 < num_hazards < 90
