"""QACT and QST: groups, factors, flags, places and refusals."""

import numpy as np
import pytest

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import encode
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, at, bits, f32

D, KB = SMALL.depth, SMALL.act_blocks
SCALES = 0x8000
SCALE_OF_ONE = 0x3C010204


def put_block(bench: Bench, address: int, *values: float) -> None:
    """A block that begins with `values` and is zero behind."""
    bench.put(address, [*values, *[0.0] * (D - len(values))])


def codes(bench: Bench, row: int, block: int, count: int = 3) -> list[int]:
    return list(map(int, bench.machine.read_act()[0][row, block * D : block * D + count]))


def scale_bits(bench: Bench, row: int) -> list[int]:
    return list(map(int, bench.machine.read_act()[1][row]))


def scales_of(*amaxes: float) -> list[int]:
    """amax * f32(1/127), rounded."""
    return list(map(int, bits(f32(amaxes) * np.array([SCALE_OF_ONE], np.uint32).view(np.float32))))


def test_blocks_get_their_own_scale_and_halves_round_to_even(bench: Bench) -> None:
    put_block(bench, 0, 127.0, 0.5, -1.5)
    put_block(bench, D, -2.0, 1.0)
    bench.do("QACT", src=0, rows=1, kb=2)
    assert codes(bench, 0, 0) == [127, 0, -2]
    assert codes(bench, 0, 1) == [-127, 64, 0]
    assert scale_bits(bench, 0)[:3] == [*scales_of(127.0, 2.0), 0]


def test_rows_and_blocks_that_are_not_named_stay(bench: Bench) -> None:
    before = (np.full((SMALL.act_rows, KB * D), 3, np.int8), np.full((SMALL.act_rows, KB), 9, np.uint32))
    bench.machine.write_act(*before)
    put_block(bench, 100, 1.0)
    put_block(bench, 140, 2.0)
    bench.run(encode("QACT", src=at(8, 1), rows=2, ab=3, kb=1, srs=40), args=(99,))
    after = bench.machine.read_act()
    touched = np.zeros((SMALL.act_rows, KB), bool)
    touched[:2, 3] = True
    assert (after[1] != before[1])[touched].all()
    assert np.array_equal(after[1][~touched], before[1][~touched])
    assert np.array_equal(after[0][~np.repeat(touched, D, axis=1)], before[0][~np.repeat(touched, D, axis=1)])
    assert [codes(bench, row, 3, 2) for row in range(2)] == [[127, 0]] * 2


def test_row_flag_shares_one_scale_between_all_blocks(bench: Bench) -> None:
    put_block(bench, 0, 1.0)
    put_block(bench, D, 2.0)
    bench.do("QACT", src=0, rows=1, kb=2, row_scale=1)
    assert (codes(bench, 0, 0, 1), codes(bench, 0, 1, 1)) == ([64], [127])
    assert scale_bits(bench, 0)[:2] == scales_of(2.0, 2.0)


def test_factors_multiply_row_first_then_column(bench: Bench) -> None:
    # (2^100 * 2^100) overflows to infinity; in the other order 2^100 * 2^-100 * 2^100 would not.
    put_block(bench, 0, 2.0**100, 1.0)
    bench.put(200, [2.0**100])
    bench.put(300, [2.0**-100, 3.0])
    bench.do("QACT", src=0, rows=1, kb=1, use_rscale=1, rscale=200, use_cscale=1, cscale=300)
    assert scale_bits(bench, 0)[0] == 0x7F800000
    bench.do("QACT", src=0, rows=1, kb=1, use_cscale=1, cscale=300)
    assert scale_bits(bench, 0)[0] == scales_of(3.0)[0]


def test_column_factors_run_over_the_whole_row(bench: Bench) -> None:
    put_block(bench, 0, 1.0)
    put_block(bench, D, 1.0)
    bench.put(300, [2.0, *[0.0] * (D - 1), 5.0])
    bench.do("QACT", src=0, rows=1, kb=2, use_cscale=1, cscale=300)
    assert scale_bits(bench, 0)[:2] == scales_of(2.0, 5.0)


def test_dup_writes_each_row_again_behind_the_rows(bench: Bench) -> None:
    put_block(bench, 0, 1.0)
    put_block(bench, D, 2.0, 1.0)
    bench.do("QACT", src=0, rows=2, kb=1, srs=D, dup=1)
    assert [scale_bits(bench, row)[0] for row in range(4)] == scales_of(1.0, 2.0) * 2
    assert codes(bench, 3, 0) == codes(bench, 1, 0) == [127, 64, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"rows": SMALL.act_rows + 1},
        {"kb": 0},
        {"kb": 2, "ab": KB - 1},
        {"rows": SMALL.mcols // 2 + 1, "dup": 1},
        {"src": SMALL.tmem_words - D + 1},
        {"rows": 2, "srs": SMALL.tmem_words},
        {"use_rscale": 1, "rscale": SMALL.tmem_words},
        {"use_cscale": 1, "cscale": SMALL.tmem_words - D + 1},
    ],
    ids=str,
)
def test_qact_refuses(bench: Bench, wrong: dict[str, Value]) -> None:
    fits: dict[str, Value] = {"rows": 1, "kb": 1, "rscale": 0xFFFF_FFFF, "cscale": 0xFFFF_FFFF}
    bench.do("QACT", **fits)
    with pytest.raises(MachineFault):
        bench.do("QACT", **fits | wrong)


def stored(bench: Bench, address: int, count: int) -> list[int]:
    return list(map(int, bench.machine.read_dram(address, count).view(np.int8)))


def test_stored_rows_and_block_scales_go_to_their_places(bench: Bench) -> None:
    for row in range(2):
        put_block(bench, 10 + 70 * row, 4.0, 2.0)
        put_block(bench, 10 + 70 * row + D, -1.0)
    bench.run(
        encode("QST", src=at(8, 2), dst=at(9, 1), sdst=at(10, 4), rows=2, kb=2, srs=70, drs=100, es=1),
        args=(8, 255, SCALES - 4),
    )
    assert stored(bench, 256, 3) == stored(bench, 356, 3) == [127, 64, 0]
    assert stored(bench, 356 + D, 2) == [-127, 0]
    assert bench.get_dram_words(SCALES, 5).tolist() == [*scales_of(4.0, 1.0, 4.0, 1.0), 0]


def test_element_stride_stores_a_column(bench: Bench) -> None:
    put_block(bench, 0, 1.0, -1.0)
    bench.do("QST", src=0, dst=3, sdst=SCALES, rows=1, kb=1, es=64)
    assert [stored(bench, 3 + 64 * c, 1)[0] for c in range(3)] == [127, -127, 0]


def test_row_flag_stores_one_scale_for_each_row(bench: Bench) -> None:
    put_block(bench, 0, 1.0)
    put_block(bench, D, 2.0)
    put_block(bench, 2 * D, 3.0)
    bench.do("QST", src=0, dst=0, sdst=SCALES, rows=2, kb=2, srs=D, drs=2 * D, es=1, row_scale=1)
    assert bench.get_dram_words(SCALES, 3).tolist() == [*scales_of(2.0, 3.0), 0]


def test_half_takes_the_scale_of_the_full_row_and_writes_its_first_half(bench: Bench) -> None:
    put_block(bench, 0, 1.0)
    put_block(bench, D, 2.0)
    bench.machine.write_dram(0, np.full(2 * D, 9, np.uint8))
    bench.do("QST", src=0, dst=0, sdst=SCALES, rows=1, kb=2, es=1, row_scale=1, half=1)
    assert stored(bench, 0, D + 1) == [64, *[0] * (D - 1), 9]
    assert bench.get_dram_words(SCALES, 1).tolist() == scales_of(2.0)


def test_scale_word_between_the_bytes_of_a_column_is_legal(bench: Bench) -> None:
    put_block(bench, 0, 1.0, 1.0)
    bench.do("QST", src=0, dst=0, sdst=4, rows=1, kb=1, es=8)
    assert stored(bench, 0, 1) + stored(bench, 8, 1) == [127, 127]
    assert bench.get_dram_words(4, 1).tolist() == scales_of(1.0)


def test_last_of_overlapping_elements_wins(bench: Bench) -> None:
    put_block(bench, 0, 1.0, *[0.5] * (D - 1))
    bench.do("QST", src=0, dst=5, sdst=SCALES, rows=1, kb=1, es=0)
    assert stored(bench, 4, 3) == [0, 64, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"kb": 0},
        {"half": 1},
        {"sdst": 0},
        {"sdst": D - 4},
        {"sdst": SCALES + 2},
        {"sdst": SMALL_DRAM_BYTES},
        {"dst": SMALL_DRAM_BYTES - D + 1},
        {"rows": 2, "drs": SMALL_DRAM_BYTES},
        {"es": SMALL_DRAM_BYTES // (D - 1) + 1},
        {"src": SMALL.tmem_words - D + 1},
        {"sdst": 28, "es": 9, "dst": 28},
    ],
    ids=str,
)
def test_qst_refuses(bench: Bench, wrong: dict[str, Value]) -> None:
    fits: dict[str, Value] = {"rows": 1, "kb": 1, "es": 1, "sdst": SCALES}
    bench.do("QST", **fits)
    with pytest.raises(MachineFault):
        bench.do("QST", **fits | wrong)
