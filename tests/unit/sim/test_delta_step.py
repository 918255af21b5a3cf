"""DSTEP against the vector instructions that it stands for, alone and in runs, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import BMode, VectorFunction, encode
from npuserve.sim.native import NativeMachine, available
from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, Instruction, Words, at, bits

STATE = 0x400
QK, V, GATES, OUT, COPY = 0, 512, 600, 700, 1024
"""TMEM places; COPY is where a state lies that VOPs work on, with a vector behind it."""
INFINITE, NAN = 0x7F80_0000, 0x7FC0_0000


def dstep(rows: int, cols: int, **changes: Value) -> Instruction:
    operands: dict[str, Value] = {"state": STATE, "qk": QK, "v": V, "g": GATES, "gs": 5, "o": OUT}
    return encode("DSTEP", rows=rows, cols=cols, **operands | changes)


def loop(body: int, times: int) -> Instruction:
    return encode("LOOP", body=body, count=times)


def vop(func: VectorFunction, **operands: Value) -> Instruction:
    return encode("VOP", func=func, **operands)


def vops(rows: int, cols: int) -> list[Instruction]:
    """The same step on a state in TMEM."""
    error, product, words = COPY + rows * cols, {"rows": rows, "cols": cols, "ars": cols}, rows * cols
    by_column: dict[str, Value] = {"a": COPY, "bmode": BMode.PER_COLUMN, "drs": 1, **product}
    by_word: dict[str, Value] = {"dst": error, "rows": 1, "cols": rows}
    return [
        encode("LD", src=STATE, dst=COPY, count=words),
        vop(VectorFunction.RDOT, dst=error, b=QK + cols, **by_column),
        vop(VectorFunction.MUL, a=error, b=GATES, bmode=BMode.PER_ROW, **by_word),
        vop(VectorFunction.SUB, a=V, b=error, **by_word),
        vop(VectorFunction.MUL, a=error, b=GATES + 5, bmode=BMode.PER_ROW, **by_word),
        vop(
            VectorFunction.OUTER,
            dst=COPY,
            a=GATES,
            b=error,
            imm=QK + cols,
            bmode=BMode.PER_ROW,
            rows=rows,
            cols=cols,
            drs=cols,
            brs=1,
            dscalar=1,
        ),
        vop(VectorFunction.RDOT, dst=OUT, b=QK, **by_column),
        encode("ST", src=COPY, dst=STATE, count=words),
    ]


def fill(bench: Bench, seed: int, *, edges: bool = False) -> None:
    """Operands of several steps, and a state of 8,192 words in a DRAM of zeros."""
    rng = np.random.default_rng(seed)
    words, state = (rng.standard_normal(count, np.float32).view(np.uint32) for count in (COPY, 8192))
    if edges:
        special = np.array(
            [0, 1 << 31, 1, 0x007F_FFFF, 0x8000_0001, 0x0080_0000, INFINITE, NAN, 0x7F7F_FFFF], np.uint32
        )
        for array in (words, state):
            places = rng.random(array.size) < 0.02
            array[places] = rng.choice(special, int(places.sum()))
    bench.put_bits(0, words)
    bench.put_dram_words(0, np.zeros(SMALL_DRAM_BYTES // 4, np.uint32))
    bench.put_dram_words(STATE, state)


def after(bench: Bench, rows: int, cols: int) -> tuple[Words, Words]:
    return bench.get_dram_words(STATE, rows * cols), bench.get_bits(OUT, rows)


@pytest.mark.parametrize(("rows", "cols"), [(1, 64), (5, 64), (33, 64), (16, 128), (7, 192), (9, 256)])
@pytest.mark.parametrize("edges", [False, True])
def test_a_step_is_the_sequence_of_vops(bench: Bench, rows: int, cols: int, edges: bool) -> None:
    fill(bench, rows, edges=edges)
    bench.run(*vops(rows, cols))
    expected = after(bench, rows, cols)
    fill(bench, rows, edges=edges)
    bench.run(dstep(rows, cols))
    for found, right in zip(after(bench, rows, cols), expected, strict=True):
        np.testing.assert_array_equal(found, right)


def test_a_step_corrects_decays_and_reads(bench: Bench) -> None:
    """One column of the state is not zero, so that the numbers can be followed."""
    bench.put(QK, [2.0] + [0.0] * 63 + [0.5] + [0.0] * 63)
    bench.put(V, [10.0])
    bench.put(GATES, [0.25, 0, 0, 0, 0, 2.0])
    bench.put_dram_words(STATE, bits([8.0] + [0.0] * 63))
    bench.run(dstep(1, 64))
    error = (10 - 8 * 0.5 * 0.25) * 2
    assert bench.get_dram_words(STATE, 1).view(np.float32)[0] == 8 * 0.25 + error * 0.5
    assert bench.get(OUT, 1) == [2 * (8 * 0.25 + error * 0.5)]


@pytest.mark.parametrize(("sign", "left"), [(1.0, 0), (-1.0, 1 << 31)])
@pytest.mark.parametrize("rows", [1, 16, 19])
def test_a_state_that_would_be_denormal_is_zero_of_its_sign(bench: Bench, rows: int, sign: float, left: int) -> None:
    """(1.25 - 1.125) 2^-126 is left of the first column."""
    smallest = sign * 2.0**-126
    bench.put(QK, [1.0] + [0.0] * 63 + [1.0] + [0.0] * 63)
    bench.put(V, [-smallest] * rows)
    bench.put(GATES, [1.0, 0, 0, 0, 0, 0.5])
    bench.put_dram_words(STATE, bits(([1.25 * smallest] + [1.0] * 63) * rows))
    bench.run(dstep(rows, 64))
    assert bench.get_dram_words(STATE, 64 * rows).reshape(rows, 64)[:, 0].tolist() == [left] * rows
    assert bench.get_bits(OUT, rows).tolist() == [0] * rows


def test_a_state_taken_as_zero_is_not_read(bench: Bench) -> None:
    fill(bench, 1)
    bench.put_dram_words(STATE, np.zeros(512, np.uint32))
    bench.run(dstep(8, 64))
    expected = after(bench, 8, 64)
    bench.put_dram_words(STATE, np.full(512, NAN, np.uint32))
    bench.run(dstep(8, 64, zero=1))
    for found, right in zip(after(bench, 8, 64), expected, strict=True):
        np.testing.assert_array_equal(found, right)


def test_zero_times_an_infinite_decay_is_no_number(bench: Bench) -> None:
    fill(bench, 1)
    bench.put_bits(GATES, [INFINITE])
    bench.run(dstep(2, 64, zero=1))
    assert (bench.get_dram_words(STATE, 128) == NAN).all()
    assert (bench.get_bits(OUT, 2) == NAN).all()


@pytest.mark.parametrize("place", [QK + 3, QK + 60, V, V - 2, GATES, GATES + 3])
def test_the_result_may_lie_over_the_operands(bench: Bench, place: int) -> None:
    fill(bench, 2)
    bench.run(dstep(6, 64))
    state, out = after(bench, 6, 64)
    fill(bench, 2)
    bench.run(dstep(6, 64, o=place))
    np.testing.assert_array_equal(bench.get_dram_words(STATE, 384), state)
    np.testing.assert_array_equal(bench.get_bits(place, 6), out)


RUNS: dict[str, list[Instruction]] = {
    "one state": [dstep(40, 64, qk=8 * i, v=V + i, o=OUT + 40 * i) for i in range(6)],
    "states side by side": [dstep(16, 64, state=STATE + 4096 * i, o=OUT + 16 * i) for i in range(4)],
    "states and rows": [
        dstep(8, 64, state=STATE + 2048 * i, qk=8 * j, o=OUT + 8 * (4 * i + j)) for i in range(3) for j in range(4)
    ],
    "a result that is read": [dstep(8, 64, o=V + 8), dstep(8, 64, v=V + 8), dstep(8, 64, v=V + 12, o=OUT + 8)],
    "a result that is overwritten": [dstep(8, 64), dstep(8, 64, o=OUT + 4), dstep(3, 64, o=OUT + 2)],
    "an operand that is overwritten": [dstep(8, 64, o=OUT), dstep(8, 64, o=QK + 32), dstep(8, 64, o=OUT + 8)],
    "states that overlap": [dstep(8, 64), dstep(8, 64, state=STATE + 512), dstep(16, 64), dstep(4, 128)],
    "taken as zero in between": [dstep(8, 64, o=OUT + 8 * i, zero=int(i == 2)) for i in range(5)],
    "through registers": [dstep(8, 64, state=at(8, 2048 * i), qk=at(9, i), v=at(10), o=OUT + 8 * i) for i in range(4)],
}
ARGUMENTS = (STATE, QK, V)


@pytest.mark.parametrize("name", RUNS)
def test_steps_in_a_row_are_those_one_by_one(bench: Bench, name: str) -> None:
    steps = RUNS[name]
    fill(bench, 3)
    assert bench.run(*steps, args=ARGUMENTS) == len(steps) + 1
    words, state = bench.get_bits(0, COPY), bench.get_dram_words(STATE, 8192)
    fill(bench, 3)
    for step in steps:
        bench.run(step, args=ARGUMENTS)
    np.testing.assert_array_equal(words, bench.get_bits(0, COPY))
    np.testing.assert_array_equal(state, bench.get_dram_words(STATE, 8192))


def test_a_run_counts_its_steps_in_loops_and_for_the_limit(bench: Bench) -> None:
    steps = RUNS["one state"]
    fill(bench, 4)
    assert bench.run(loop(len(steps), 3), *steps) == 2 + 3 * len(steps)
    state = bench.get_dram_words(STATE, 2560)
    fill(bench, 4)
    bench.run(*steps, *steps, *steps)
    np.testing.assert_array_equal(bench.get_dram_words(STATE, 2560), state)
    fill(bench, 4)
    bench.machine.load(np.array(steps, np.uint32))
    with pytest.raises(MachineFault) as caught:
        bench.machine.run(max_instructions=4)
    assert caught.value.pc == 4
    state = bench.get_dram_words(STATE, 2560)
    fill(bench, 4)
    bench.run(*steps[:4])
    np.testing.assert_array_equal(bench.get_dram_words(STATE, 2560), state)


def test_a_wrong_step_stops_a_run_at_its_place(bench: Bench) -> None:
    steps = RUNS["one state"]
    fill(bench, 5)
    with pytest.raises(MachineFault) as caught:
        bench.run(*steps[:3], dstep(0, 64), *steps[3:])
    assert caught.value.pc == 3
    state = bench.get_dram_words(STATE, 2560)
    fill(bench, 5)
    bench.run(*steps[:3])
    np.testing.assert_array_equal(bench.get_dram_words(STATE, 2560), state)


def wrong_at(bench: Bench, steps: list[Instruction], base: int) -> int | None:
    try:
        bench.run(*steps, args=(base,))
    except MachineFault as fault:
        return fault.pc
    return None


@pytest.mark.parametrize("base", [STATE, STATE + 4096, SMALL_DRAM_BYTES - 6144, 0xFFFF_F800])
def test_a_run_is_judged_anew_where_its_register_says(bench: Bench, base: int) -> None:
    """Found to fit once, run again elsewhere: also where the last steps are outside, or the addresses wrap."""
    steps = [dstep(8, 64, state=at(8, 2048 * (i + 1)), o=OUT + 8 * i) for i in range(4)]
    fill(bench, 6)
    bench.run(*steps, args=(STATE,))
    alone: list[int | None] = []
    fill(bench, 7)
    for number, step in enumerate(steps):
        if wrong_at(bench, [step], base) is not None:
            alone.append(number)
            break
    expected = bench.machine.read_dram(0, SMALL_DRAM_BYTES)
    fill(bench, 7)
    assert [wrong_at(bench, steps, base)] == (alone or [None])
    np.testing.assert_array_equal(bench.machine.read_dram(0, SMALL_DRAM_BYTES), expected)


@pytest.mark.parametrize(
    "step",
    [
        dstep(0, 64),
        dstep(257, 64),
        *(dstep(1, cols) for cols in (0, 1, 32, 63, 96, 255, 320, 0xFFFF)),
        dstep(1, 64, state=STATE + 4),
        dstep(1, 64, state=STATE + 16),
        dstep(2, 64, state=SMALL_DRAM_BYTES - 256),
        dstep(1, 64, qk=SMALL.tmem_words - 127),
        dstep(2, 64, v=SMALL.tmem_words - 1),
        dstep(1, 64, g=SMALL.tmem_words),
        dstep(1, 64, g=1, gs=SMALL.tmem_words - 1),
        dstep(1, 64, g=1, gs=0xFFFF_FFFF),
        dstep(2, 64, o=SMALL.tmem_words - 1),
    ],
)
def test_wrong_operands_are_refused(bench: Bench, step: Instruction) -> None:
    with pytest.raises(MachineFault):
        bench.run(step)


def test_the_last_words_of_memories_are_in_reach(bench: Bench) -> None:
    last = SMALL.tmem_words - 1
    bench.run(dstep(1, 64, state=SMALL_DRAM_BYTES - 256, qk=last - 127, v=last, g=last, gs=0, o=last))


def test_a_machine_without_dstep_refuses_it() -> None:
    without = replace(SMALL, dstep=False)
    machines: list[ReferenceMachine | NativeMachine] = [ReferenceMachine(without, SMALL_DRAM_BYTES)]
    if available():
        machines.append(NativeMachine(without, SMALL_DRAM_BYTES))
    for machine in machines:
        with pytest.raises(MachineFault, match="no DSTEP"):
            Bench(machine).run(dstep(1, 64))


def test_its_state_may_be_a_matrix_that_was_multiplied_with(bench: Bench) -> None:
    """What a step writes is seen by MM, also where weights are kept packed."""
    codes: NDArray[np.int8] = np.ones((SMALL.act_rows, SMALL.act_blocks * SMALL.depth), np.int8)
    bench.machine.write_act(codes, np.full((SMALL.act_rows, SMALL.act_blocks), 0x3F80_0000, np.uint32))
    fill(bench, 8)
    multiply = encode("MM", sa=STATE, out=COPY, n=8, kb=8, rs=256, ors=8, m=1, unit=1)
    for _ in range(3):
        bench.run(multiply)
    bench.run(dstep(8, 64), multiply)
    expected = bench.get_dram_words(STATE, 512).view(np.int8).reshape(8, 256)
    sums = np.clip(expected, -128, 127).astype(np.int64).sum(axis=1)
    assert bench.get(COPY, 8) == sums.tolist()
