"""VOP: every function, the sources of B, the hazard rule and its legal neighbours."""

import pytest

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import BMode, VectorFunction, encode
from small_machine import SMALL, Bench, at, bits

NAN, INF, NEGATIVE_ZERO, PAYLOAD_NAN, DENORMAL = 0x7FC00000, 0x7F800000, 0x80000000, 0xFF812345, 0x80000001
A, B, OUT = 100, 200, 300


def vop(bench: Bench, function: VectorFunction | int, **operands: Value) -> None:
    places: dict[str, Value] = {"dst": OUT, "a": A, "b": B, "rows": 1}
    bench.do("VOP", func=int(function), **places | operands)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (VectorFunction.ADD, [8.0, -1.0]),
        (VectorFunction.SUB, [4.0, -7.0]),
        (VectorFunction.RSUB, [-4.0, 7.0]),
        (VectorFunction.MUL, [12.0, -12.0]),
        (VectorFunction.MAX, [6.0, 3.0]),
        (VectorFunction.MIN, [2.0, -4.0]),
        (VectorFunction.COPY, [6.0, -4.0]),
        (VectorFunction.ABS, [6.0, 4.0]),
        (VectorFunction.FILL, [2.0, 3.0]),
        (VectorFunction.EXP2, [64.0, 0.0625]),
        (VectorFunction.EXP2SUB, [16.0, 2.0**-7]),
    ],
)
def test_elementwise_functions(bench: Bench, function: VectorFunction, expected: list[float]) -> None:
    bench.put(A, [6.0, -4.0])
    bench.put(B, [2.0, 3.0])
    vop(bench, function, cols=2)
    assert bench.get(OUT, 3) == [*expected, 0.0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (VectorFunction.RECIP, [0x3E800000, 0x3F800000]),
        (VectorFunction.RSQRT, [0x3F000000, 0x3F800000]),
        (VectorFunction.LOG2, [0x40000000, 0]),
    ],
)
def test_composite_functions(bench: Bench, function: VectorFunction, expected: list[int]) -> None:
    bench.put(A, [4.0, 1.0])
    vop(bench, function, cols=2)
    assert bench.get_bits(OUT, 2).tolist() == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (BMode.MATRIX, [1.0, 2.0, 4.0, 5.0]),
        (BMode.PER_ROW, [1.0, 1.0, 4.0, 4.0]),
        (BMode.PER_COLUMN, [1.0, 2.0, 1.0, 2.0]),
        (BMode.IMMEDIATE, [7.0, 7.0, 7.0, 7.0]),
    ],
)
def test_sources_of_b(bench: Bench, mode: BMode, expected: list[float]) -> None:
    bench.put(B, [1, 2, 3, 4, 5])
    seven = int(bits([7.0])[0])
    vop(bench, VectorFunction.FILL, rows=2, cols=2, drs=2, brs=3, bmode=int(mode), imm=seven)
    assert bench.get(OUT, 4) == expected


def test_addresses_and_immediate_add_their_registers(bench: Bench) -> None:
    bench.put(A, [1.0])
    operands: dict[str, Value] = {
        "dst": at(8, 1),
        "a": at(9, 1),
        "bmode": 3,
        "imm": at(10, 0x4000_0000),
        "rows": 1,
        "cols": 1,
    }
    bench.run(encode("VOP", func=int(VectorFunction.MUL), **operands), args=(OUT - 1, A - 1, 0x0040_0000))
    assert bench.get(OUT, 1) == [3.0]


def test_copy_and_fill_flush_but_keep_nan(bench: Bench) -> None:
    bench.put_bits(A, [DENORMAL, PAYLOAD_NAN])
    vop(bench, VectorFunction.COPY, cols=2)
    assert bench.get_bits(OUT, 2).tolist() == [NEGATIVE_ZERO, PAYLOAD_NAN]
    vop(bench, VectorFunction.FILL, cols=1, bmode=3, imm=1)
    assert bench.get_bits(OUT, 1).tolist() == [0]


def test_strides_of_operands_and_a_repeated_row(bench: Bench) -> None:
    bench.put(A, [1, 2])
    vop(bench, VectorFunction.COPY, rows=2, cols=2, drs=3)
    assert bench.get(OUT, 5) == [1, 2, 0, 1, 2]
    bench.put(A, [1, 2, 3, 4])
    vop(bench, VectorFunction.COPY, rows=2, cols=2, ars=2, drs=1)
    assert bench.get(OUT, 3) == [1, 3, 4]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (VectorFunction.RSUM, [6.0, 1.0]),
        (VectorFunction.RMAX, [3.0, 5.0]),
        (VectorFunction.RSSQ, [14.0, 41.0]),
        (VectorFunction.RDOT, [321.0, -395.0]),
    ],
)
def test_reductions_write_one_word_for_each_row(bench: Bench, function: VectorFunction, expected: list[float]) -> None:
    bench.put(A, [1, 2, 3, 9, 5, -4, 0])
    bench.put(B, [1, 10, 100])
    if function is VectorFunction.RDOT:
        bench.put(A, [1, 2, 3, 9, 5, -40, 0])
    vop(bench, function, rows=2, cols=3, ars=4, drs=2, bmode=2)
    assert bench.get(OUT, 4) == [expected[0], 0, expected[1], 0]


def test_reductions_sum_in_64_partials(bench: Bench) -> None:
    # Elements 0 and 64 meet in partial 0: 2^24 + 1 loses its 1; the ones of columns 1 and 33 meet first.
    row = [0.0] * 65
    row[0], row[64] = 2.0**24, 1.0
    bench.put(A, row)
    vop(bench, VectorFunction.RSUM, cols=65)
    assert bench.get(OUT, 1) == [2.0**24]
    row[64], row[1], row[33] = 0.0, 1.0, 1.0
    bench.put(A, row)
    vop(bench, VectorFunction.RSUM, cols=65)
    assert bench.get(OUT, 1) == [2.0**24 + 2]


def test_padding_turns_negative_zero_partials_positive(bench: Bench) -> None:
    # Columns c and c + 64 cancel to a denormal below zero, which is -0 in all 64 partials.
    row = [0x00800000] * 64 + [0x80800001] * 64
    bench.put_bits(A, row)
    vop(bench, VectorFunction.RSUM, cols=128, dst=600)
    assert bench.get_bits(600, 1).tolist() == [NEGATIVE_ZERO]
    bench.put_bits(A, [*row, NEGATIVE_ZERO])
    for function in (VectorFunction.RSUM, VectorFunction.RDOT):
        vop(bench, function, cols=129, dst=600, bmode=3, imm=0x3F800000)
        assert bench.get_bits(600, 1).tolist() == [0]


def test_row_maximum_uses_the_total_order(bench: Bench) -> None:
    bench.put_bits(A, [INF, PAYLOAD_NAN, 0x7F800001])
    vop(bench, VectorFunction.RMAX, cols=3)
    assert bench.get_bits(OUT, 1).tolist() == [0x7F800001]
    bench.put_bits(A, [NEGATIVE_ZERO, 0, NEGATIVE_ZERO])
    vop(bench, VectorFunction.RMAX, cols=3)
    assert bench.get_bits(OUT, 1).tolist() == [0]


def test_argmax_gives_the_first_of_equal_columns_plus_a_signed_base(bench: Bench) -> None:
    bench.put(A, [1, 5, 5, 7, 6, 7])
    vop(bench, VectorFunction.ARGMAX, rows=2, cols=3, ars=3, drs=2, imm=0xFFFF_FFFE)
    assert bench.get(OUT, 4) == [5, -1, 7, -2]


def test_argmax_compares_flushed_bits(bench: Bench) -> None:
    bench.put_bits(A, [NEGATIVE_ZERO, 1, 0])
    vop(bench, VectorFunction.ARGMAX, cols=3)
    assert bench.get_bits(OUT, 2).tolist() == [0, 0x3F800000]


def test_argmax_of_several_rows_needs_room_for_both_words(bench: Bench) -> None:
    vop(bench, VectorFunction.ARGMAX, cols=3, drs=0)
    with pytest.raises(MachineFault):
        vop(bench, VectorFunction.ARGMAX, rows=2, cols=3, ars=3, drs=1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [2 * 10 + 3 * 5, 3 * 20 + 3 * 7, 4 * 10 + 4 * 5, 5 * 20 + 4 * 7]),
        ({"dscalar": 1}, [2 * 10 + 15, 3 * 10 + 21, 4 * 10 + 20, 5 * 10 + 28]),
        ({"done": 1, "a": 0xFFFF_FFFF}, [2 + 15, 3 + 21, 4 + 20, 5 + 28]),
        ({"done": 1, "dscalar": 1}, [2 + 15, 3 + 21, 4 + 20, 5 + 28]),
    ],
    ids=str,
)
def test_outer_decays_its_target_and_adds_a_product(
    bench: Bench, flags: dict[str, Value], expected: list[float]
) -> None:
    bench.put(OUT, [2, 3, 4, 5])
    bench.put(A, [10, 20])
    bench.put(B, [3, 4])
    bench.put(50, [5, 7])
    vop(bench, VectorFunction.OUTER, rows=2, cols=2, drs=2, brs=1, bmode=1, imm=50, **flags)
    assert bench.get(OUT, 4) == expected


def test_outer_reads_its_column_factors_before_it_writes(bench: Bench) -> None:
    bench.put(OUT, [2, 3, 4, 5])
    bench.put(B, [1, 10])
    vop(bench, VectorFunction.OUTER, rows=2, cols=2, drs=2, brs=1, bmode=1, imm=OUT, a=OUT)
    assert bench.get(OUT, 4) == [2 * 2 + 2, 3 * 3 + 3, 4 * 2 + 20, 5 * 3 + 30]


@pytest.mark.parametrize("flags", [{"dscalar": 1}, {"done": 1}, {"dscalar": 1, "done": 1}], ids=str)
def test_other_functions_ignore_the_flags_of_outer(bench: Bench, flags: dict[str, Value]) -> None:
    bench.put(A, [1, 2])
    vop(bench, VectorFunction.COPY, cols=2, **flags)
    assert bench.get(OUT, 2) == [1, 2]


LEGAL: list[tuple[VectorFunction, dict[str, Value]]] = [
    (VectorFunction.ADD, {"dst": A, "rows": 2, "cols": 4, "drs": 4, "ars": 4, "brs": 4}),
    (VectorFunction.MUL, {"dst": A, "rows": 2, "cols": 4, "drs": 4, "ars": 4, "bmode": 1, "brs": 1}),
    (VectorFunction.COPY, {"dst": A - 1, "cols": 8}),
    (VectorFunction.COPY, {"dst": A - 3, "rows": 2, "cols": 4, "drs": 4, "ars": 4}),
    (VectorFunction.RSUM, {"dst": A, "rows": 3, "cols": 4, "ars": 4, "drs": 1}),
    (VectorFunction.RSUM, {"dst": A + 3, "rows": 3, "cols": 4, "ars": 4, "drs": 4}),
    (VectorFunction.ARGMAX, {"dst": A, "rows": 2, "cols": 2, "ars": 2, "drs": 2}),
    (VectorFunction.FILL, {"dst": B, "cols": 1, "bmode": 1}),
    (VectorFunction.ADD, {"dst": B, "rows": 1, "cols": 4, "bmode": 2}),
    (VectorFunction.ADD, {"dst": B + 3, "rows": 1, "cols": 4, "bmode": 1}),
    (VectorFunction.OUTER, {"rows": 1, "cols": 4, "drs": 0, "bmode": 1}),
    (VectorFunction.OUTER, {"rows": 2, "cols": 4, "drs": 4, "bmode": 1, "b": OUT + 7, "brs": 0}),
    (VectorFunction.FILL, {"dst": A, "rows": 2, "cols": 4, "bmode": 2, "drs": 1}),
    (VectorFunction.ABS, {"dst": B, "b": B, "cols": 4, "bmode": 1}),
]
HAZARDS: list[tuple[VectorFunction, dict[str, Value]]] = [
    (VectorFunction.COPY, {"dst": A + 1, "cols": 2}),
    (VectorFunction.COPY, {"dst": A, "rows": 2, "cols": 4, "drs": 4, "ars": 0}),
    (VectorFunction.COPY, {"dst": A, "rows": 2, "cols": 4, "drs": 8, "ars": 4, "a": A + 1}),
    (VectorFunction.RSUM, {"dst": A + 4, "rows": 2, "cols": 4, "ars": 4, "drs": 1}),
    (VectorFunction.ARGMAX, {"dst": A + 3, "rows": 2, "cols": 4, "ars": 4, "drs": 2}),
    (VectorFunction.FILL, {"dst": B, "cols": 2, "bmode": 1}),
    (VectorFunction.ADD, {"dst": B, "rows": 2, "cols": 4, "drs": 4, "ars": 4, "bmode": 2}),
    (VectorFunction.ADD, {"dst": B, "rows": 2, "cols": 4, "drs": 4, "ars": 4, "bmode": 1, "brs": 1}),
    (VectorFunction.RDOT, {"dst": B, "rows": 2, "cols": 4, "drs": 4, "ars": 4, "bmode": 1, "brs": 0}),
    (VectorFunction.OUTER, {"rows": 2, "cols": 4, "drs": 3, "bmode": 1}),
    (VectorFunction.OUTER, {"rows": 2, "cols": 4, "drs": 4, "bmode": 1, "b": OUT + 3, "brs": 0}),
    (VectorFunction.OUTER, {"rows": 1, "cols": 4, "bmode": 1, "b": OUT + 2}),
]


@pytest.mark.parametrize(("function", "operands"), LEGAL, ids=str)
def test_reading_before_or_while_overwriting_is_legal(
    bench: Bench, function: VectorFunction, operands: dict[str, Value]
) -> None:
    vop(bench, function, **operands)


@pytest.mark.parametrize(("function", "operands"), HAZARDS, ids=str)
def test_reading_what_an_earlier_element_wrote_is_a_hazard(
    bench: Bench, function: VectorFunction, operands: dict[str, Value]
) -> None:
    with pytest.raises(MachineFault):
        vop(bench, function, **operands)


def test_shift_down_moves_every_element(bench: Bench) -> None:
    bench.put(A, [1, 2, 3, 4])
    vop(bench, VectorFunction.COPY, dst=A - 1, cols=4)
    assert bench.get(A - 1, 5) == [1, 2, 3, 4, 4]


LAST = SMALL.tmem_words - 1


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (7, {}),
        (21, {}),
        (255, {}),
        (VectorFunction.ADD, {"rows": 0}),
        (VectorFunction.ADD, {"cols": 0}),
        (VectorFunction.ADD, {"dst": LAST}),
        (VectorFunction.ADD, {"a": LAST}),
        (VectorFunction.ADD, {"b": LAST}),
        (VectorFunction.ADD, {"b": LAST, "bmode": 2}),
        (VectorFunction.ADD, {"b": LAST + 1, "bmode": 1}),
        (VectorFunction.ADD, {"a": 0xFFFF_FFFF}),
        (VectorFunction.ADD, {"rows": 2, "ars": 0xFFFF}),
        (VectorFunction.ADD, {"rows": 65535, "cols": 65535, "drs": 65535}),
        (VectorFunction.RSUM, {"dst": LAST + 1}),
        (VectorFunction.ARGMAX, {"dst": LAST}),
        (VectorFunction.OUTER, {"bmode": 0}),
        (VectorFunction.OUTER, {"bmode": 2}),
        (VectorFunction.OUTER, {"bmode": 3}),
        (VectorFunction.OUTER, {"bmode": 1, "cols": 257}),
        (VectorFunction.OUTER, {"bmode": 1, "imm": LAST}),
        (VectorFunction.OUTER, {"bmode": 1, "a": LAST}),
        (VectorFunction.OUTER, {"bmode": 1, "a": LAST + 1, "dscalar": 1}),
    ],
    ids=str,
)
def test_vop_refuses(bench: Bench, function: VectorFunction | int, wrong: dict[str, Value]) -> None:
    with pytest.raises(MachineFault):
        vop(bench, function, **{"cols": 2} | wrong)


@pytest.mark.parametrize(
    ("function", "unread"),
    [
        (VectorFunction.FILL, {"a": LAST + 1}),
        (VectorFunction.ABS, {"b": LAST + 1}),
        (VectorFunction.ARGMAX, {"b": LAST + 1}),
        (VectorFunction.ADD, {"b": LAST + 1, "bmode": 3}),
        (VectorFunction.ADD, {"b": LAST, "bmode": 1}),
        (VectorFunction.OUTER, {"bmode": 1, "a": LAST, "dscalar": 1}),
        (VectorFunction.OUTER, {"bmode": 1, "a": LAST + 1, "done": 1}),
    ],
    ids=str,
)
def test_unread_operands_may_lie_outside(bench: Bench, function: VectorFunction, unread: dict[str, Value]) -> None:
    vop(bench, function, **{"cols": 2} | unread)
