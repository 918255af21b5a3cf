"""Random programs end alike on the reference and on every form of the native machine."""

import numpy as np
import pytest

from lockstep.fleet import Fleet, assert_lockstep, native_fleet
from lockstep.random_programs import random_program
from npuserve.isa.machine import BOARD, WIDE, MachineConfig
from npuserve.isa.spec import disassemble, encode
from npuserve.sim.native import available

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

DRAM_BYTES = 1 << 20
SHALLOW = MachineConfig("shallow", depth=32, mcols=8, act_rows=10, act_blocks=64, tmem_words=1 << 14, dstep=False)
CONFIGS = {config.name: config for config in (BOARD, WIDE, SHALLOW)}
MAX_INSTRUCTIONS = 3000
MAX_FAULTS = 25
NOP = np.array(encode("NOP"), np.uint32)


@pytest.fixture(scope="module", params=CONFIGS)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return native_fleet(CONFIGS[request.param], DRAM_BYTES)


def run_through_faults(fleet: Fleet, seed: int) -> int:
    """Run the program of a seed; as long as it faults, put a NOP there and run it again. Faults met on the way."""
    drawn = random_program(seed, fleet.config, fleet.config.dram_bytes)
    program = drawn.program.copy()
    for num_faults in range(MAX_FAULTS):
        outcome = assert_lockstep(fleet, program, drawn.args, drawn.memory, MAX_INSTRUCTIONS)
        pc = outcome.fault_pc
        if pc is None:
            return num_faults
        here = pc < len(program) and disassemble(list(map(int, program[pc]))) == outcome.fault_instruction
        if not here or outcome.fault_instruction == disassemble(list(map(int, NOP))):
            return num_faults
        program[pc] = NOP
    return MAX_FAULTS


@pytest.mark.parametrize("seed", range(25))
def test_random_program_runs_in_lockstep(fleet: Fleet, seed: int) -> None:
    run_through_faults(fleet, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_programs_run_in_lockstep(fleet: Fleet, part: int) -> None:
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        run_through_faults(fleet, seed)
