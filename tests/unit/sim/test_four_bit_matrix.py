"""MM with 4-bit weights and PAIR: sums by hand, the order of roundings, refusals."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import MachineFault
from npuserve.isa.fields import Value
from npuserve.isa.spec import encode
from npuserve.quant import e2m1, int4, nibbles
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench, bits, f32

D = SMALL.depth
SCALES = 0x8000
INT4, FP4, NVFP4 = 1, 2, 3
ONES = 0x1111 << 16
NAN, INF = 0x7FC00000, 0x7F800000
FORMATS = pytest.mark.parametrize("wf", [INT4, FP4, NVFP4])
E4M3_ONE, E4M3_NAN = 0x38, 0x7F


def set_act(bench: Bench, rows: NDArray[np.int8], scales: NDArray[np.float32]) -> None:
    """Fill the upper left corner of ACT RAM: rows int8 [m, kb * D], scales [m, kb]."""
    codes, words = bench.machine.read_act()
    codes[: rows.shape[0], : rows.shape[1]] = rows
    words[: scales.shape[0], : scales.shape[1]] = scales.astype(np.float32).view(np.uint32)
    bench.machine.write_act(codes, words)


def set_codes(bench: Bench, rows: Sequence[Sequence[int]]) -> None:
    """Codes of streamed rows, one row after the other from DRAM 0 on; rows are filled up to whole chunks."""
    codes = np.zeros((len(rows), -(-len(rows[0]) // (2 * D)) * 2 * D), np.uint8)
    codes[:, : len(rows[0])] = rows
    bench.machine.write_dram(0, nibbles.join(codes).ravel())


def first_of_blocks(*values: int, sub_blocks: int = 1) -> list[int]:
    """Codes of blocks with one value at the start of each block or sub-block and zeros behind."""
    codes = np.zeros((len(values), D // sub_blocks), np.uint8)
    codes[:, 0] = values
    flat: list[int] = codes.ravel().tolist()
    return flat


def blocks(*values: int) -> NDArray[np.int8]:
    """One ACT row: a value at the start of each block."""
    row = np.zeros((len(values), D), np.int8)
    row[:, 0] = values
    return row.reshape(1, -1)


def bf16(value: float) -> int:
    return int(bits([value])[0]) >> 16


@pytest.mark.parametrize(
    ("wf", "integers"),
    [
        (INT4, [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]),
        (FP4, [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
        (NVFP4, [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
    ],
)
def test_each_code_stands_for_its_integer(bench: Bench, wf: int, integers: list[int]) -> None:
    set_codes(bench, [first_of_blocks(code) for code in range(16)])
    set_act(bench, blocks(3), f32([[1]]))
    bench.do("MM", n=16, kb=1, m=1, rs=D, unit=1, wf=wf)
    assert bench.get(0, 16) == [3 * value for value in integers]


@FORMATS
def test_elements_of_a_block_are_nibbles_from_the_low_end(bench: Bench, wf: int) -> None:
    """One row per element; each row has a single 1 in it, so it picks out its element of ACT."""
    set_codes(bench, np.eye(2 * D, dtype=int).tolist())
    values = np.arange(-D, D, dtype=np.int8)
    set_act(bench, values[None], f32([[1, 1]]))
    bench.do("MM", n=2 * D, kb=2, m=1, rs=D, unit=1, wf=wf)
    assert bench.get(0, 2 * D) == values.tolist()


@FORMATS
def test_the_unused_half_of_the_last_chunk_does_not_count(bench: Bench, wf: int) -> None:
    set_codes(bench, [[1] * 4 * D])
    set_act(bench, np.ones((1, 4 * D), np.int8), np.ones((1, 4), np.float32))
    bench.do("MM", n=1, kb=3, m=1, unit=1, wf=wf)
    assert bench.get(0, 1) == [3 * D]


@pytest.mark.parametrize("wf", [INT4, FP4])
def test_multipliers_go_up_the_scale_word(bench: Bench, wf: int) -> None:
    set_codes(bench, [first_of_blocks(1, 2, 3, 4, sub_blocks=4)])
    act = np.zeros((1, D), np.int8)
    act[0, :: D // 4] = 1
    set_act(bench, act, f32([[0.5]]))
    bench.put_dram_words(SCALES, [0xF_7_2_0 << 16 | bf16(2.0)])
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1, wf=wf)
    assert bench.get(0, 1) == [0 * 1 + 2 * 2 + 7 * 3 + 15 * 4]


@pytest.mark.parametrize("wf", [INT4, FP4])
def test_a_two_level_block_is_exact_before_its_scale(bench: Bench, wf: int) -> None:
    """The largest sums there are, and two that cancel although each has more bits than fp32 takes with a fraction."""
    largest = 8 if wf == INT4 else 15
    set_codes(bench, [[largest] * D, [largest] * (D // 2) + [7] * (D // 2)])
    set_act(bench, np.full((1, D), -127, np.int8), f32([[1]]))
    bench.put_dram_words(SCALES, [0xFFFF << 16 | bf16(1.0)] * 2)
    bench.do("MM", ssa=SCALES, n=2, kb=1, m=1, rs=D, srs=4, wf=wf)
    low, high = (-8, 7) if wf == INT4 else (-12, 12)
    assert bench.get(0, 2) == [-127 * 15 * D * low, -127 * 15 * D // 2 * (low + high)]


@pytest.mark.parametrize("wf", [INT4, FP4])
def test_block_scales_are_bf16_of_any_pattern(bench: Bench, wf: int) -> None:
    """A denormal counts as zero, infinity and NaN pass on; the multipliers above do not disturb them."""
    patterns = [0x3FC1, 0x007F, 0x7F80, 0xFF81, 0xC000]
    set_codes(bench, [first_of_blocks(1)])
    set_act(bench, blocks(1), f32([[1]]))
    bench.put_dram_words(SCALES, [ONES | pattern for pattern in patterns])
    bench.do("MM", ssa=SCALES, n=5, kb=1, m=1, srs=4, wf=wf)
    assert bench.get_bits(0, 5).tolist() == [0x3FC1_0000, 0, INF, NAN, 0xC000_0000]


@pytest.mark.parametrize("wf", [INT4, FP4])
def test_weight_scale_is_applied_before_act_scale(bench: Bench, wf: int) -> None:
    set_codes(bench, [first_of_blocks(2)])
    set_act(bench, blocks(1), f32([[2.0**-20]]))
    bench.put_dram_words(SCALES, [ONES | bf16(2.0**127)])
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1, wf=wf)
    assert bench.get_bits(0, 1).tolist() == [INF]


def nvfp4_scales(bench: Bench, rows: Sequence[tuple[Sequence[int], float]]) -> int:
    """Write rows of (E4M3 bytes, row scale) from SCALES on; the stride in bytes."""
    data = [np.concatenate([np.array(e4m3, np.uint8), bits([scale, 0]).view(np.uint8)]) for e4m3, scale in rows]
    bench.machine.write_dram(SCALES, np.concatenate(data))
    return len(data[0])


def test_nvfp4_scales_go_up_the_two_words_and_the_row_scale_is_behind(bench: Bench) -> None:
    set_codes(bench, [first_of_blocks(*[1] * 16, sub_blocks=8)] * 2)
    act = np.zeros((1, 2 * D), np.int8)
    act[0, :: D // 8] = np.arange(1, 17)
    set_act(bench, act, f32([[1, 1]]))
    powers = [0x38 + 8 * exponent for exponent in range(-7, 9)]  # 2^-7 .. 2^8, the lowest a denormal
    powers[0] = 4
    srs = nvfp4_scales(bench, [(powers, 0.5), ([code | 0x80 for code in powers], 3.0)])
    bench.do("MM", ssa=SCALES, n=2, kb=2, m=1, rs=D, srs=srs, wf=NVFP4)
    total = sum((i + 1) * 2.0 ** (i - 7) for i in range(16))
    assert bench.get(0, 2) == [0.5 * total, -3 * total]


def test_nvfp4_rounds_after_each_sub_block_and_the_row_scale_comes_last(bench: Bench) -> None:
    """2^24 is reached by 12 * 112 * 448 * ..; what is too small for it then is lost one by one."""
    set_codes(bench, [first_of_blocks(*[2] * 8, sub_blocks=8)])
    act = np.zeros((1, D), np.int8)
    act[0, :: D // 8] = [64, 1, 1, 1, 0, 0, 0, 0]
    set_act(bench, act, f32([[1]]))
    top, small = 0x78, 2  # 256 and 2^-8: 2^15 and three times 2^-7, below half a unit of 2^-8 after the first
    srs = nvfp4_scales(bench, [([top, small, small, small, 0, 0, 0, 0], 1.0)])
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1, srs=srs, wf=NVFP4)
    assert bench.get(0, 1) == [2.0**15 + 3 * 2.0**-7]
    act[0, 0] = 127
    set_act(bench, act, f32([[1]]))
    srs = nvfp4_scales(bench, [([0x7E, 1, 1, 1, 1, 0, 0, 0], 1.0)])
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1, srs=srs, wf=NVFP4)
    first = np.float32(127 * 2 * 448)
    expected = first
    for _ in range(3):
        expected = expected + np.float32(2 * 2.0**-9)
    assert bench.get(0, 1) == [float(expected)]


def test_nvfp4_adds_sub_blocks_from_the_first_on(bench: Bench) -> None:
    """4 times 2^-8 joins a sum near 2^16 only when added to it at once, and before it cancels it is lost."""
    big = 12 * 127 * 448  # between 2^19 and 2^20: units of 2^-4
    set_codes(bench, [first_of_blocks(7, 1, 1, 1, 15, 1, 0, 0, sub_blocks=8)])
    act = np.zeros((1, D), np.int8)
    act[0, :: D // 8] = [127, 1, 1, 1, 127, 1, 0, 0]
    set_act(bench, act, f32([[1]]))
    srs = nvfp4_scales(bench, [([0x7E, 4, 4, 4, 0x7E, 4, 0, 0], 1.0)])
    bench.do("MM", ssa=SCALES, n=1, kb=1, m=1, srs=srs, wf=NVFP4)
    assert np.float32(big) + np.float32(2.0**-7) == big
    assert bench.get(0, 1) == [2.0**-7]


def test_nvfp4_scales_that_are_nan_give_nan_and_act_scale_comes_before_the_row_scale(bench: Bench) -> None:
    set_codes(bench, [first_of_blocks(2)])
    set_act(bench, blocks(1), f32([[2.0**127]]))
    nan = [E4M3_NAN] + [0] * 7
    one = [E4M3_ONE] + [0] * 7
    srs = nvfp4_scales(bench, [(nan, 1.0), (one, 2.0**-10)])
    bench.do("MM", ssa=SCALES, n=2, kb=1, m=1, srs=srs, wf=NVFP4)
    assert bench.get_bits(0, 2).tolist() == [NAN, INF]


@FORMATS
def test_accumulation_and_row_maxima_are_as_with_int8(bench: Bench, wf: int) -> None:
    set_codes(bench, [first_of_blocks(code) for code in (9, 1, 2)])
    set_act(bench, np.concatenate([blocks(1), blocks(2)]), f32([[1], [1]]))
    weights = [{INT4: int4.CODES, FP4: e2m1.VALUES, NVFP4: e2m1.VALUES}[wf][code] for code in (9, 1, 2)]
    bench.put(0, [0, -5, 0, 9, 9, 9])
    bench.do("MM", n=3, kb=1, rs=D, m=2, ors=3, unit=1, acc=1, rmax=1, wf=wf)
    first = [weights[0], weights[1] - 5, weights[2]]
    second = [9 + 2 * weight for weight in weights]
    assert bench.get(0, 8) == [*first, *second, max(first), max(second)]


@FORMATS
def test_pair_takes_odd_blocks_from_the_rows_behind(bench: Bench, wf: int) -> None:
    """Row j has block values in the even places, row m + j in the odd ones; the others must not count."""
    set_codes(bench, [first_of_blocks(1, 2, 3)])
    rows = [blocks(1, 99, 2), blocks(10, 99, 20), blocks(99, 3, 99), blocks(99, 30, 99)]
    set_act(bench, np.concatenate(rows), np.ones((4, 3), np.float32))
    bench.do("MM", n=1, kb=3, m=2, ors=1, unit=1, pair=1, wf=wf)
    assert bench.get(0, 2) == [1 + 2 * 3 + 3 * 2, 10 + 2 * 30 + 3 * 20]


@FORMATS
def test_pair_adds_an_odd_block_to_the_even_one_before_it(bench: Bench, wf: int) -> None:
    """Eight blocks are four pairs, each in a partial of its own; without PAIR blocks k and k + 4 meet."""
    set_codes(bench, [first_of_blocks(*[1] * 8)])
    scales = f32([[2.0**24, 1, 1, 1, 1, 1, 1, 1]])
    set_act(bench, np.concatenate([blocks(*[1] * 8)] * 2), np.repeat(scales, 2, axis=0))
    bench.do("MM", n=1, kb=8, m=1, unit=1, pair=1, wf=wf)
    # (2^24 + 1) loses the 1; p2 is 2; p1 + p3 is 4.
    assert bench.get(0, 1) == [2.0**24 + 2 + 4]
    bench.do("MM", n=1, kb=8, m=1, unit=1, wf=wf)
    # p0 = 2^24 + 1 likewise; every other partial is 2.
    assert bench.get(0, 1) == [2.0**24 + 2 + 4]
    set_act(bench, np.concatenate([blocks(*[1] * 3)] * 2), np.repeat(f32([[2.0**24, 1, 1]]), 2, axis=0))
    bench.do("MM", n=1, kb=3, m=1, unit=1, pair=1, wf=wf)
    assert bench.get(0, 1) == [2.0**24]
    bench.do("MM", n=1, kb=3, m=1, unit=1, wf=wf)
    # (p0 + p2) + p1 without pairs: 1 is lost twice as well, but 2^24 + 2 - the pair 1 + 1 - would not be.
    assert bench.get(0, 1) == [2.0**24]
    set_act(bench, np.concatenate([blocks(*[1] * 4)] * 2), np.repeat(f32([[1, 1, 2.0**24, 0]]), 2, axis=0))
    bench.do("MM", n=1, kb=4, m=1, unit=1, pair=1, wf=wf)
    assert bench.get(0, 1) == [2.0**24 + 2]
    bench.do("MM", n=1, kb=4, m=1, unit=1, wf=wf)
    assert bench.get(0, 1) == [2.0**24]


@pytest.mark.parametrize("wf", [INT4, FP4])
def test_pair_ignores_the_padding_word_of_an_odd_row(bench: Bench, wf: int) -> None:
    set_codes(bench, [first_of_blocks(1)] * 2)
    set_act(bench, np.concatenate([blocks(1)] * 2), f32([[1], [1]]))
    bench.put_dram_words(SCALES, [ONES | bf16(2), ONES | bf16(7), ONES | bf16(3), 0xFFFF_FFFF])
    bench.do("MM", ssa=SCALES, n=2, kb=1, rs=D, m=1, srs=8, pair=1, wf=wf)
    assert bench.get(0, 2) == [2, 3]


@FORMATS
def test_duplicated_rows_give_what_pair_needs(bench: Bench, wf: int) -> None:
    rng = np.random.default_rng(wf)
    set_codes(bench, rng.integers(0, 16, (5, 3 * D)).tolist())
    bench.put(0, rng.integers(-127, 128, (2, 3 * D)) * np.float32(0.25))
    quantize = encode("QACT", rows=2, kb=3, srs=3 * D, dup=1)
    operands: dict[str, Value] = {"n": 5, "kb": 3, "rs": 2 * D, "m": 2, "ors": 5, "unit": 1, "wf": wf}
    bench.run(quantize, encode("MM", **operands, out=500), encode("MM", **operands, out=600, pair=1))
    np.testing.assert_allclose(bench.get(600, 10), bench.get(500, 10), rtol=1e-6)


FITS: dict[str, Value] = {"n": 1, "kb": 1, "m": 1, "rs": D, "unit": 1}
LAST = SMALL_DRAM_BYTES - D


@FORMATS
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
        {"sa": LAST, "n": 2},
        {"sa": LAST, "kb": 3},
        {"unit": 0, "ssa": 4, "pair": 1},
        {"unit": 0, "srs": 4, "pair": 1},
        {"unit": 0, "ssa": 2},
        {"unit": 0, "n": 2, "srs": 2},
        {"unit": 0, "ssa": SMALL_DRAM_BYTES},
        {"m": SMALL.mcols // 2 + 1, "pair": 1},
        {"rmax": 1, "m": SMALL.mcols + 1},
        {"ascale": 1, "unit": 0, "acc": 1},
    ],
    ids=str,
)
def test_mm_refuses(bench: Bench, wf: int, wrong: dict[str, Value]) -> None:
    bench.do("MM", **FITS, wf=wf)
    with pytest.raises(MachineFault):
        bench.do("MM", **FITS | wrong, wf=wf)


@pytest.mark.parametrize("wrong", [{"ssa": 4}, {"srs": 12}, {"ssa": SMALL_DRAM_BYTES - 8}], ids=str)
def test_nvfp4_scales_lie_on_multiples_of_eight_and_end_with_the_row_scale(
    bench: Bench, wrong: dict[str, Value]
) -> None:
    fits = FITS | {"unit": 0, "srs": 16, "wf": NVFP4}
    bench.do("MM", **fits, ssa=SMALL_DRAM_BYTES - 16)
    with pytest.raises(MachineFault):
        bench.do("MM", **fits | wrong)


@FORMATS
def test_two_blocks_fit_into_the_last_chunk_of_dram(bench: Bench, wf: int) -> None:
    bench.do("MM", **FITS | {"sa": LAST, "kb": 2}, wf=wf)


def test_pair_is_refused_with_int8(bench: Bench) -> None:
    with pytest.raises(MachineFault):
        bench.do("MM", **FITS, pair=1)
