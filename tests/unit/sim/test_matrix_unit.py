"""MM: sums by hand, the order of its roundings, its flags and its refusals."""

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import encode
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, at, bits, f32

D = SMALL.depth
SCALES = 0x8000
NAN, INF, NEGATIVE_ZERO = 0x7FC00000, 0x7F800000, 0x80000000


def set_act(bench: Bench, rows: NDArray[np.int8], scales: NDArray[np.float32]) -> None:
    """Fill the upper left corner of ACT RAM: rows int8 [m, kb * D], scales [m, kb]."""
    codes, words = bench.machine.read_act()
    codes[: rows.shape[0], : rows.shape[1]] = rows
    words[: scales.shape[0], : scales.shape[1]] = scales.astype(np.float32).view(np.uint32)
    bench.machine.write_act(codes, words)


def blocks(*values: int) -> NDArray[np.int8]:
    """One row of blocks; each holds one value in its first element and zeros behind, so a dot is one product."""
    row = np.zeros((len(values), D), np.int8)
    row[:, 0] = values
    return row.reshape(1, -1)


def set_weights(bench: Bench, rows: NDArray[np.int8]) -> None:
    bench.machine.write_dram(0, rows.view(np.uint8).ravel())


def simple(bench: Bench, weight: int = 3, act: int = 5, ws: float = 2.0, scale: float = 0.5) -> None:
    """One block, one row: dot weight * act."""
    set_weights(bench, blocks(weight))
    set_act(bench, blocks(act), f32([[scale]]))
    bench.put_dram_words(SCALES, bits([ws]))


def test_result_is_dot_times_weight_scale_times_act_scale(bench: Bench) -> None:
    simple(bench)
    bench.do("MM", ssa=SCALES, out=7, n=1, kb=1, m=1)
    assert bench.get(7, 1) == [15.0]


def test_every_row_column_block_and_stride_is_where_it_should_be(bench: Bench) -> None:
    # Block k of streamed row n holds 10 n + k + 1; stationary row j holds j + 1; so out is (j+1) * sum over k.
    weights = np.concatenate([np.concatenate([blocks(10 * n + 1, 10 * n + 2), blocks(99)], 1) for n in range(3)])
    set_weights(bench, weights)
    set_act(bench, np.concatenate([blocks(99, j + 1, j + 1) for j in range(2)]), f32([[9, 1, 2]] * 2))
    for n in range(3):
        bench.put_dram_words(SCALES + 12 * n, bits([1.0, 0.5]))
    bench.run(
        encode("MM", sa=at(8), ssa=at(9, 4), out=at(10, 1), n=3, kb=2, rs=3 * D, ors=5, m=2, ab=1, srs=12),
        args=(0, SCALES - 4, 99),
    )
    row = [3.0, 23.0, 43.0]
    assert bench.get(100, 8) == [*row, 0, 0, *(2 * value for value in row)]


def test_weight_bytes_of_minus_128_count_as_such(bench: Bench) -> None:
    set_weights(bench, np.full((1, D), -128, np.int8))
    set_act(bench, np.full((1, D), -127, np.int8), f32([[1]]))
    bench.do("MM", n=1, kb=1, m=1, unit=1)
    assert bench.get(0, 1) == [128 * 127 * D]


def test_unit_reads_no_scales(bench: Bench) -> None:
    simple(bench)
    bench.do("MM", ssa=3, n=1, kb=1, m=1, srs=1, unit=1)
    assert bench.get(0, 1) == [7.5]


def test_weight_scale_is_applied_first(bench: Bench) -> None:
    # 2 * 2^127 overflows before the small ACT scale can help.
    simple(bench, weight=2, act=1, ws=2.0**127, scale=2.0**-20)
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1)
    assert bench.get_bits(0, 1).tolist() == [INF]


def test_blocks_are_added_in_four_partials(bench: Bench) -> None:
    # (p0 + p2) + (p1 + p3): 2^24 + 1 loses the 1, but 1 + 1 joined first survives.
    set_weights(bench, blocks(1, 1, 0, 1, 0, 0))
    set_act(bench, blocks(1, 1, 1, 1, 1, 1), f32([[2.0**24, 1, 1, 1, 1, 1]]))
    bench.do("MM", n=1, kb=6, m=1, unit=1)
    assert bench.get(0, 1) == [2.0**24 + 2]


def test_sum_of_negative_zeros_is_positive_zero(bench: Bench) -> None:
    set_weights(bench, blocks(0, 0))
    set_act(bench, blocks(1, 1), -np.ones((1, 2), np.float32))
    bench.put_bits(0, [NAN])
    bench.do("MM", n=1, kb=2, m=1, unit=1)
    assert bench.get_bits(0, 1).tolist() == [0]


def test_partials_that_are_negative_zero_stay_so_without_padding(bench: Bench) -> None:
    # Blocks k and k + 4 cancel to a denormal below zero, which is -0; block 8 adds another -0 to partial 0.
    smallest, negative = 0x00800000, 0x80800001
    set_weights(bench, blocks(*[1] * 9))
    set_act(bench, blocks(*[1] * 9), np.ones((1, 9), np.float32))
    bench.put_dram_words(SCALES, [*[smallest] * 4, *[negative] * 4, NEGATIVE_ZERO])
    bench.do("MM", ssa=SCALES, n=1, kb=9, m=1)
    assert bench.get_bits(0, 1).tolist() == [NEGATIVE_ZERO]
    bench.do("MM", ssa=SCALES, n=1, kb=7, m=1)
    assert bench.get_bits(0, 1).tolist() == [smallest]


def test_denormal_scale_counts_as_zero_and_nan_as_canonical(bench: Bench) -> None:
    simple(bench, act=100)
    bench.put_dram_words(SCALES, [0x007F_FFFF, 0xFF81_2345])
    bench.do("MM", ssa=SCALES, n=2, kb=1, m=1, srs=4, rs=0)
    assert bench.get_bits(0, 2).tolist() == [0, NAN]


def test_acc_adds_to_what_was_there(bench: Bench) -> None:
    simple(bench)
    bench.put(7, [100.0])
    bench.do("MM", ssa=SCALES, out=7, n=1, kb=1, m=1, acc=1)
    assert bench.get(7, 1) == [115.0]


def test_ascale_multiplies_what_was_there_by_the_row_factor(bench: Bench) -> None:
    simple(bench)
    set_act(bench, np.concatenate([blocks(5), blocks(1)]), f32([[1], [1]]))
    bench.put(0, [10.0, 0.0, 20.0])
    bench.put(50, [2.0, -1.0])
    bench.do("MM", ssa=50, n=1, kb=1, m=2, ors=2, unit=1, acc=1, ascale=1)
    assert bench.get(0, 3) == [35.0, 0.0, -17.0]


def test_row_factors_are_read_before_results_are_written(bench: Bench) -> None:
    simple(bench)
    bench.put(0, [2.0])
    bench.do("MM", ssa=0, n=1, kb=1, m=1, unit=1, acc=1, ascale=1)
    assert bench.get(0, 1) == [2.0 * 2.0 + 7.5]


def test_rmax_is_written_behind_the_rows_after_accumulation(bench: Bench) -> None:
    set_weights(bench, np.concatenate([blocks(-3), blocks(-1), blocks(-2)]))
    set_act(bench, np.concatenate([blocks(1), blocks(2)]), f32([[1], [1]]))
    bench.put(0, [0, -5, 0, 9, 9, 9])
    bench.do("MM", n=3, kb=1, rs=D, m=2, ors=3, unit=1, acc=1, rmax=1)
    assert bench.get(0, 8) == [-3, -6, -2, 3, 7, 5, -2, 7]


def test_last_of_overlapping_result_rows_wins_and_reads_the_old_value(bench: Bench) -> None:
    set_weights(bench, np.concatenate([blocks(1), blocks(2)]))
    set_act(bench, np.concatenate([blocks(1), blocks(10)]), f32([[1], [1]]))
    bench.put(0, [100, 200, 300])
    bench.do("MM", n=2, kb=1, rs=D, m=2, ors=1, unit=1, acc=1)
    assert bench.get(0, 3) == [101, 210, 320]


def test_a_row_stride_of_zero_repeats_the_row(bench: Bench) -> None:
    simple(bench)
    bench.do("MM", n=3, kb=1, m=1, unit=1)
    assert bench.get(0, 4) == [7.5, 7.5, 7.5, 0]


def test_changed_weights_are_seen_by_the_next_instruction(bench: Bench) -> None:
    simple(bench)
    multiply = encode("MM", n=1, kb=1, m=1, unit=1)
    bench.put_bits(90, [7])
    bench.run(encode("LOOP", body=2, count=3), multiply, encode("NOP"), encode("ST", src=90, dst=0, count=1), multiply)
    assert bench.get(0, 1) == [17.5]


def test_weights_may_be_the_last_chunk_of_dram(bench: Bench) -> None:
    bench.do("MM", sa=SMALL_DRAM_BYTES - D, n=1, kb=1, m=1, unit=1)


FITS: dict[str, Value] = {"n": 1, "kb": 1, "m": 1, "rs": D, "unit": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"m": 0},
        {"m": SMALL.act_rows + 1},
        {"n": 0},
        {"kb": 0},
        {"kb": 2, "ab": SMALL.act_blocks - 1},
        {"sa": D // 2},
        {"rs": D // 2},
        {"sa": SMALL_DRAM_BYTES},
        {"sa": SMALL_DRAM_BYTES - D, "n": 2},
        {"sa": SMALL_DRAM_BYTES - D, "kb": 2},
        {"unit": 0, "ssa": 2},
        {"unit": 0, "n": 2, "srs": 2},
        {"unit": 0, "ssa": SMALL_DRAM_BYTES},
        {"out": SMALL.tmem_words},
        {"out": SMALL.tmem_words - 1, "n": 2},
        {"out": SMALL.tmem_words - 1, "rmax": 1, "ors": 1},
        {"ascale": 1},
        {"ascale": 1, "unit": 0, "acc": 1},
        {"ascale": 1, "acc": 1, "m": SMALL.mcols + 1},
        {"ascale": 1, "acc": 1, "ssa": SMALL.tmem_words},
        {"rmax": 1, "m": SMALL.mcols + 1},
        {"pair": 1},
    ],
    ids=str,
)
def test_mm_refuses(bench: Bench, wrong: dict[str, Value]) -> None:
    bench.do("MM", **FITS)
    with pytest.raises(MachineFault):
        bench.do("MM", **FITS | wrong)


def test_more_rows_than_columns_are_served_in_passes(bench: Bench) -> None:
    set_weights(bench, blocks(1))
    rows = SMALL.mcols + 2
    set_act(bench, np.concatenate([blocks(j) for j in range(rows)]), np.ones((rows, 1), np.float32))
    bench.do("MM", n=1, kb=1, m=rows, ors=1, unit=1)
    assert bench.get(0, rows) == list(range(rows))
