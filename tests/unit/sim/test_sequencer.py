"""Registers, loops, HALT and its chain, RLD and WAITW."""

import numpy as np
import pytest

from npuserve.errors import MachineFault, ProgramError
from npuserve.isa.fields import Value
from npuserve.isa.spec import encode
from small_machine import SMALL, Bench, at, li

NOP, HALT = encode("NOP"), encode("HALT")


def count(register: int) -> list[int]:
    return encode("ADDI", rd=register, ra=register, value=1)


def loop(body: int, times: int) -> list[int]:
    return encode("LOOP", body=body, count=times)


def test_arguments_arrive_in_the_upper_registers_and_the_rest_is_zero(bench: Bench) -> None:
    bench.run(li(3, 5), li(15, 9))
    bench.run(NOP, args=(1, 0xFFFF_FFFF))
    assert bench.machine.registers().tolist() == [0] * 8 + [1, 0xFFFF_FFFF] + [0] * 6


def test_register_zero_stays_zero(bench: Bench) -> None:
    bench.run(li(0, 7), count(0))
    assert bench.machine.registers()[0] == 0


def test_addi_wraps_at_32_bits(bench: Bench) -> None:
    bench.run(li(1, 0xFFFF_FFFF), encode("ADDI", rd=2, ra=1, value=3))
    assert bench.machine.registers()[2] == 2


def test_every_execution_retires_halt_and_loop_too(bench: Bench) -> None:
    assert bench.run(loop(2, 3), count(1), NOP) == 8
    assert bench.machine.registers()[1] == 3


def test_loop_count_is_register_plus_immediate_and_wraps(bench: Bench) -> None:
    bench.run(li(2, 0xFFFF_FFFF), encode("LOOP", body=1, count=at(2, 3)), count(1))
    assert bench.machine.registers()[1] == 2


def test_loop_of_zero_executions_skips_its_body(bench: Bench) -> None:
    assert bench.run(loop(2, 0), count(1), count(1), count(3)) == 3
    assert bench.machine.registers()[[1, 3]].tolist() == [0, 1]


def test_loops_nest_to_four(bench: Bench) -> None:
    bench.run(loop(8, 2), loop(6, 2), loop(4, 2), loop(2, 2), count(1), NOP, NOP, NOP, NOP)
    assert bench.machine.registers()[1] == 16


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize(
    ("outer_bodies", "body", "nops"),
    [([], 0, 1), ([9, 7, 5, 3], 1, 5), ([2], 1, 1), ([1], 1, 1), ([2], 2, 2)],
    ids=["empty body", "fifth level", "same end", "ends on a loop", "reaches past the outer end"],
)
def test_badly_nested_loop_faults_whatever_its_count(
    bench: Bench, outer_bodies: list[int], body: int, nops: int, times: int
) -> None:
    with pytest.raises(MachineFault) as caught:
        bench.run(*(loop(outer, 1) for outer in outer_bodies), loop(body, times), *[NOP] * nops)
    assert caught.value.pc == len(outer_bodies)


def test_halt_inside_a_loop_forgets_the_loop(bench: Bench) -> None:
    assert bench.run(loop(2, 5), HALT, NOP) == 2
    assert bench.run(count(1), count(1)) == 3
    assert bench.machine.registers()[1] == 2


@pytest.mark.parametrize("program", [[NOP], [loop(5, 0)], [loop(5, 1), NOP]], ids=["run", "skip", "body"])
def test_running_past_the_end_faults(bench: Bench, program: list[list[int]]) -> None:
    bench.machine.load(np.array(program, np.uint32))
    with pytest.raises(MachineFault) as caught:
        bench.machine.run()
    assert caught.value.pc is not None
    assert caught.value.pc >= len(program)


def test_unknown_opcode_faults_with_its_place(bench: Bench) -> None:
    with pytest.raises(MachineFault, match="0x77") as caught:
        bench.run(NOP, [0x77, 0, 0, 0, 0, 0, 0, 0])
    assert caught.value.pc == 1


def test_stream_is_not_in_this_configuration(bench: Bench) -> None:
    with pytest.raises(MachineFault):
        bench.run([0x13, 0, 0, 0, 0, 0, 0, 0])


def test_endless_program_stops_at_the_limit(bench: Bench) -> None:
    bench.machine.load(np.array([loop(1, 0xFFFF_FFFF), NOP], np.uint32))
    with pytest.raises(MachineFault, match="50"):
        bench.machine.run(max_instructions=50)


def test_exactly_the_limit_is_enough(bench: Bench) -> None:
    bench.machine.load(np.array([NOP, HALT], np.uint32))
    assert bench.machine.run(max_instructions=2) == 2


def test_bar_does_nothing_on_one_slice(bench: Bench) -> None:
    assert bench.run(encode("BAR")) == 2


def chained(bench: Bench, address: int, num: int, *instructions: list[int]) -> int:
    """Run a program that chains to `instructions`, stored at DRAM byte 64."""
    bench.put_dram_words(64, instructions)
    chain = encode("HALT", chain=1, address=1, count=2)
    return bench.run(li(1, address), li(2, num), li(8, 99), loop(2, 3), chain, NOP, args=(7,))


def test_chain_starts_over_with_the_arguments_and_keeps_memories(bench: Bench) -> None:
    bench.put(5, [1.5])
    assert chained(bench, 64, 3, count(1), count(8), HALT) == 5 + 3
    assert bench.machine.registers().tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 8] + [0] * 7
    assert bench.get(5, 1) == [1.5]


@pytest.mark.parametrize(
    ("address", "num"), [(32 + 4, 1), (64, 0), (64, SMALL.imem_instructions + 1), (1 << 16, 1), ((1 << 16) - 32, 2)]
)
def test_chain_to_a_bad_place_faults(bench: Bench, address: int, num: int) -> None:
    with pytest.raises(MachineFault) as caught:
        chained(bench, address, num, HALT)
    assert caught.value.pc == 4


def test_chained_program_ends_where_its_count_says(bench: Bench) -> None:
    with pytest.raises(MachineFault) as caught:
        chained(bench, 64, 1, NOP, HALT)
    assert caught.value.pc == 1


def test_program_may_write_the_program_it_chains_to(bench: Bench) -> None:
    bench.put_dram_words(64, [count(1), HALT])
    replacement = li(3, 11)
    bench.put_bits(0, replacement)
    chain = [li(1, 64), li(2, 2), encode("HALT", chain=1, address=1, count=2)]
    assert bench.run(*chain) == 5
    assert bench.run(encode("ST", dst=64, src=0, count=8), *chain) == 6
    assert bench.machine.registers()[[1, 3]].tolist() == [0, 11]


def test_loaded_program_is_a_copy(bench: Bench) -> None:
    bench.put_dram_words(64, [encode("ST", dst=64, src=0, count=8), count(1), HALT])
    bench.machine.load_from_dram(64, 3)
    assert bench.machine.run() == bench.machine.run() == 3


def test_what_was_written_before_a_fault_stays(bench: Bench) -> None:
    bench.put_bits(0, [5])
    with pytest.raises(MachineFault):
        bench.run(li(1, 3), encode("ST", dst=8, src=0, count=1), [0x77, 0, 0, 0, 0, 0, 0, 0], li(1, 4))
    assert bench.machine.registers()[1] == 3
    assert bench.get_dram_words(8, 1).tolist() == [5]
    assert bench.run(NOP) == 2


def test_program_loads_from_bytes_and_from_dram(bench: Bench) -> None:
    program = np.array([count(1), HALT], np.uint32)
    bench.machine.load(program.astype("<u4").tobytes())
    assert bench.machine.run() == 2
    bench.put_dram_words(96, program)
    bench.machine.load_from_dram(96, 2)
    assert bench.machine.run() == 2


def test_program_larger_than_the_instruction_memory_is_refused(bench: Bench) -> None:
    with pytest.raises(ProgramError, match=str(SMALL.imem_instructions)):
        bench.machine.load(np.zeros((SMALL.imem_instructions + 1, 8), np.uint32))


def test_rld_truncates_multiplies_and_keeps_low_bits(bench: Bench) -> None:
    bench.put(4, [-2.9, 3.5, 1e10])
    bench.run(
        encode("RLD", rd=1, src=4),
        encode("RLD", rd=2, src=at(2, 5), raw=1),
        li(7, 100),
        encode("RLD", rd=3, src=4, mul=1, factor=at(7, 1)),
        encode("RLD", rd=4, src=6, mul=1, factor=3),
        encode("RLD", rd=5, src=5, raw=1, mul=1, factor=4),
    )
    half_word = 0x4060_0000
    expected = [-2 % 2**32, half_word, -202 % 2**32, 0x8000_0000 * 3 % 2**32, half_word * 4 % 2**32]
    assert bench.machine.registers()[1:6].tolist() == expected


def test_rld_into_register_zero_still_checks_its_address(bench: Bench) -> None:
    bench.do("RLD", rd=0, src=SMALL.tmem_words - 1)
    with pytest.raises(MachineFault):
        bench.do("RLD", rd=0, src=SMALL.tmem_words)


@pytest.mark.parametrize(
    ("compare", "mask", "ref", "holds"),
    [
        (0, 0xFFFF_FFFF, 0x8000_0005, True),
        (0, 0xFF, 5, True),
        (0, 0xFF, 0x105, False),
        (1, 0xFF, 5, False),
        (1, 0xFF, 6, True),
        (2, 0xFF, 5, True),
        (2, 0xFF, 6, False),
        (2, 0xFFFF_FFFF, 0x8000_0004, True),
        (2, 0xFFFF_FFFF, 0, False),
        (3, 0xFFFF_FFFF, 0, False),
    ],
)
def test_waitw_compares_the_masked_word(bench: Bench, compare: int, mask: int, ref: int, holds: bool) -> None:
    bench.put_dram_words(8, [0x8000_0005])
    wait: dict[str, Value] = {"src": 8, "dst": 3, "ref": at(8, 1), "mask": mask, "compare": compare}
    if holds:
        bench.run(encode("WAITW", **wait), args=(ref - 1,))
        assert bench.get_bits(3, 1).tolist() == [0x8000_0005]
    else:
        with pytest.raises(MachineFault):
            bench.run(encode("WAITW", **wait), args=(ref - 1,))


def test_waitw_needs_an_aligned_word_inside_dram(bench: Bench) -> None:
    for address in (2, 1 << 16):
        with pytest.raises(MachineFault):
            bench.do("WAITW", src=address, mask=0)
