"""LD, ST and GATHER, and the bounds they keep."""

import pytest

from npuserve.errors import MachineFault
from npuserve.isa.spec import encode
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, at

RAW = [0x0000_0001, 0x8000_0001, 0x7F81_2345, 0xFFFF_FFFF]
LAST_WORD, LAST_BYTES = SMALL.tmem_words - 1, SMALL_DRAM_BYTES - 4


def test_load_and_store_move_raw_bits(bench: Bench) -> None:
    bench.put_dram_words(16, RAW)
    bench.run(encode("LD", src=at(8, 8), dst=at(9, 1), count=4), encode("ST", dst=64, src=5, count=4), args=(8, 4))
    assert bench.get_bits(5, 4).tolist() == RAW
    assert bench.get_dram_words(64, 4).tolist() == RAW


def test_address_wraps_once_at_32_bits(bench: Bench) -> None:
    bench.put_dram_words(4, [77])
    bench.run(encode("LD", src=at(8, 8), dst=at(8, 10), count=1), args=(0xFFFF_FFFC,))
    assert bench.get_bits(6, 1).tolist() == [77]


def test_moves_of_no_words_check_nothing(bench: Bench) -> None:
    bench.do("LD", src=0xFFFF_FFFF, dst=0xFFFF_FFFF, count=0)
    bench.do("ST", src=0xFFFF_FFFF, dst=0xFFFF_FFFF, count=0)


@pytest.mark.parametrize("name", ["LD", "ST"])
def test_moves_reach_the_last_word_and_not_beyond(bench: Bench, name: str) -> None:
    dram, tmem = ("src", "dst") if name == "LD" else ("dst", "src")
    bench.do(name, **{dram: LAST_BYTES, tmem: LAST_WORD}, count=1)
    for operands in (
        {dram: LAST_BYTES, tmem: 0, "count": 2},
        {dram: 0, tmem: LAST_WORD, "count": 2},
        {dram: 2, tmem: 0, "count": 1},
        {dram: 0xFFFF_FFFC, tmem: 0, "count": 2},
        {dram: 0, tmem: 0, "count": 0xFFFF_FFFF},
    ):
        with pytest.raises(MachineFault):
            bench.do(name, **operands)


def test_gather_copies_rows_of_raw_words(bench: Bench) -> None:
    bench.put_bits(10, [RAW[0], RAW[1], 9, RAW[2], RAW[3]])
    bench.do("GATHER", src=10, dst=100, rows=2, cols=2, srs=3, drs=4, seg=1000)
    assert bench.get_bits(100, 6).tolist() == [RAW[0], RAW[1], 0, 0, RAW[2], RAW[3]]


def test_last_gathered_row_wins(bench: Bench) -> None:
    bench.put(10, [1, 2, 3, 4])
    bench.do("GATHER", src=10, dst=100, rows=2, cols=2, srs=2, drs=1)
    assert bench.get(100, 3) == [1, 3, 4]


@pytest.mark.parametrize(("rows", "cols", "dst"), [(1, 4, 13), (2, 2, 15), (0, 1, 100), (1, 0, 100), (2, 1, 4095)])
def test_gather_refuses_overlap_emptiness_and_the_outside(bench: Bench, rows: int, cols: int, dst: int) -> None:
    with pytest.raises(MachineFault):
        bench.do("GATHER", src=10, dst=dst, rows=rows, cols=cols, srs=4, drs=4)


def test_gather_between_the_rows_of_its_source_is_no_overlap(bench: Bench) -> None:
    bench.put(10, [1, 2, 0, 0, 3, 4])
    bench.do("GATHER", src=10, dst=12, rows=2, cols=2, srs=4, drs=4)
    assert bench.get(10, 8) == [1, 2, 1, 2, 3, 4, 3, 4]
