"""A fleet that looks like one machine, so that a device above it runs whole models in lockstep."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.fleet import Fleet, assert_equal, assert_same_memory
from npuserve.errors import MachineFault
from small_machine import Machine, Words


class LockstepMachine:
    """Hands everything to every machine of the fleet; each run must end in the same state everywhere.

    What is read comes from the first machine, the reference. Comparing costs a pass over all memories after each run.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.num_runs = 0

    @property
    def reference(self) -> Machine:
        return next(iter(self.fleet.machines.values()))

    def load(self, program: Words | bytes) -> None:
        for machine in self.fleet.machines.values():
            machine.load(program)

    def load_from_dram(self, address: int, count: int) -> None:
        for machine in self.fleet.machines.values():
            machine.load_from_dram(address, count)

    def run(self, args: Sequence[int] = (), max_instructions: int | None = None) -> int:
        """Run everywhere and compare; retired instructions. A fault of the reference is raised, if all have it."""
        self.num_runs += 1
        outcomes = {name: _run(machine, args, max_instructions) for name, machine in self.fleet.machines.items()}
        (first_name, expected), *others = outcomes.items()
        for name, outcome in others:
            assert _place(outcome) == _place(expected), f"{name}: {outcome}, but {first_name}: {expected}"
            assert_equal(name, "R", self.fleet.machines[name].registers(), self.reference.registers())
            if not isinstance(expected, MachineFault):
                assert_same_memory(self.fleet, name)
        if isinstance(expected, MachineFault):
            raise expected
        return expected

    def read_dram(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        return self.reference.read_dram(address, num_bytes)

    def write_dram(self, address: int, data: NDArray[np.uint8]) -> None:
        for machine in self.fleet.machines.values():
            machine.write_dram(address, data)


def _run(machine: Machine, args: Sequence[int], max_instructions: int | None) -> int | MachineFault:
    try:
        return machine.run(args, max_instructions)
    except MachineFault as fault:
        return fault


def _place(outcome: int | MachineFault) -> tuple[int | None, str]:
    return (outcome.pc, outcome.instruction) if isinstance(outcome, MachineFault) else (outcome, "")
