import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.errors import EncodingError, ProgramError
from npuserve.isa.fields import Address
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import BMode, VectorFunction, decode
from npuserve.program.assembler import Assembler, float_bits
from npuserve.sim.reference import ReferenceMachine

MACHINE = MachineConfig("test", tmem_words=4096, imem_instructions=32)


def listing(program: NDArray[np.uint32]) -> list[str]:
    return [decode([int(word) for word in words])[0].name for words in program]


def run(asm: Assembler) -> ReferenceMachine:
    asm.emit("HALT")
    machine = ReferenceMachine(MACHINE, 4096)
    machine.load(asm.program())
    machine.run(max_instructions=10_000)
    return machine


def test_a_loop_runs_its_body_so_many_times() -> None:
    asm = Assembler(MACHINE)
    with asm.loop(5):
        asm.step(1, 3)
    assert run(asm).registers()[1] == 15


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_count_can_stand_in_a_register(count: int) -> None:
    asm = Assembler(MACHINE)
    asm.set(2, count)
    with asm.loop(Address(2, 0)):
        asm.step(1, 1)
    assert run(asm).registers()[1] == count


def test_loops_that_would_end_together_are_kept_apart_by_a_nop() -> None:
    asm = Assembler(MACHINE)
    with asm.loop(2), asm.loop(3), asm.loop(4):
        asm.step(1, 1)
    assert listing(asm.program()) == ["LOOP", "LOOP", "LOOP", "ADDI", "NOP", "NOP"]
    assert run(asm).registers()[1] == 24


def test_a_loop_that_goes_on_behind_an_inner_one_needs_no_nop() -> None:
    asm = Assembler(MACHINE)
    with asm.loop(2):
        with asm.loop(3):
            asm.step(1, 1)
        asm.step(2, 1)
    assert listing(asm.program()) == ["LOOP", "LOOP", "ADDI", "ADDI"]
    assert run(asm).registers()[1:3].tolist() == [6, 2]


def test_four_loops_nest_and_a_fifth_is_refused() -> None:
    asm = Assembler(MACHINE)
    with asm.loop(1), asm.loop(1), asm.loop(1), asm.loop(1):
        asm.step(1, 1)
        with pytest.raises(ProgramError, match="nest to 4"), asm.loop(1):
            pass
    assert run(asm).registers()[1] == 1


def test_registers_are_set_and_stepped_by_addresses() -> None:
    asm = Assembler(MACHINE)
    asm.set(1, 0x8000_0000)
    asm.set(2, Address(1, 16))
    asm.step(2, -4)
    assert run(asm).registers()[1:3].tolist() == [0x8000_0000, 0x8000_000C]


def test_a_program_longer_than_the_instruction_memory_is_refused() -> None:
    asm = Assembler(MACHINE)
    for _ in range(33):
        asm.emit("NOP")
    with pytest.raises(ProgramError, match="33 instructions, but the test machine holds 32"):
        asm.program()


def test_an_operand_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EncodingError, match="cols"):
        Assembler(MACHINE).vop(VectorFunction.COPY, 0, 0, cols=1 << 16)


def test_a_vector_operation_takes_an_immediate_an_operand_or_none() -> None:
    asm = Assembler(MACHINE)
    asm.vop(VectorFunction.FILL, 0, b=1.5, cols=4)
    asm.vop(VectorFunction.FILL, 8, b=3.0, cols=2)
    asm.vop(VectorFunction.MUL, 16, 0, 8, rows=2, cols=2, strides=(2, 2, 1), mode=BMode.PER_ROW)
    asm.vop(VectorFunction.EXP2, 32, 8, cols=2)
    machine = run(asm)
    assert machine.read_tmem(16, 4).view(np.float32).tolist() == [4.5] * 4
    assert machine.read_tmem(32, 2).view(np.float32).tolist() == [8.0] * 2


def test_an_immediate_is_rounded_to_fp32() -> None:
    assert float_bits(1.0) == 0x3F80_0000
    assert float_bits(-0.1) == 0xBDCC_CCCD
