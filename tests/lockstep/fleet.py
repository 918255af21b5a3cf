"""Running one program on several machines and comparing everything that an instruction can have changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import MachineFault
from npuserve.isa.machine import MachineConfig
from npuserve.sim.native import NativeMachine, kernel_sets
from npuserve.sim.reference import ReferenceMachine
from small_machine import Machine, Words

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines of one configuration by name; the first is right by definition."""

    config: MachineConfig
    machines: dict[str, Machine]


def native_fleet(
    config: MachineConfig,
    dram_bytes: int,
    threads: Sequence[int] = (1, 2),
    shadow_bytes: Sequence[int | None] = (None,),
) -> Fleet:
    """The reference, and the native machine with each kernel set of this CPU, number of threads and shadow size."""
    config = replace(config, dram_bytes=dram_bytes)
    machines: dict[str, Machine] = {REFERENCE: ReferenceMachine(config)}
    for kernels, count, shadow in product(kernel_sets(), threads, shadow_bytes):
        name = f"native, {kernels}, {count} threads, shadow {shadow}"
        machines[name] = NativeMachine(config, kernels=kernels, threads=count, shadow_bytes=shadow)
    return Fleet(config, machines)


@dataclass(frozen=True, slots=True)
class Memory:
    """What memories hold before a run: DRAM pieces by byte address, TMEM from word 0, the ACT RAM; None leaves it."""

    dram: Mapping[int, NDArray[np.uint8]] | None = None
    tmem: Words | None = None
    act: tuple[NDArray[np.int8], Words] | None = None

    def write_to(self, machine: Machine) -> None:
        for address, data in (self.dram or {}).items():
            machine.write_dram(address, data)
        if self.tmem is not None:
            machine.write_tmem(0, self.tmem)
        if self.act is not None:
            machine.write_act(*self.act)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: retired instructions, or where it faulted."""

    retired: int | None
    fault_pc: int | None = None
    fault_instruction: str = ""


def outcome_of(machine: Machine, program: Words, args: Sequence[int], max_instructions: int | None) -> Outcome:
    machine.load(program)
    try:
        return Outcome(machine.run(args, max_instructions))
    except MachineFault as fault:
        return Outcome(None, fault.pc, fault.instruction)


def assert_lockstep(
    fleet: Fleet,
    program: Words,
    args: Sequence[int] = (),
    memory: Memory | None = None,
    max_instructions: int | None = None,
) -> Outcome:
    """Run `program` (uint32 [n, 8]) on every machine of the fleet; how it ended, the same for all of them.

    After a clean end TMEM, ACT RAM, DRAM and registers must be equal to the bit. After a fault only its place and
    the registers are compared, because the failing instruction may have written a part of its results.
    """
    memory = memory or Memory()
    (first_name, first), *others = fleet.machines.items()
    memory.write_to(first)
    expected = outcome_of(first, program, args, max_instructions)
    for name, machine in others:
        memory.write_to(machine)
        outcome = outcome_of(machine, program, args, max_instructions)
        assert outcome == expected, f"{name}: {outcome}, but {first_name}: {expected}"
        assert_equal(name, "R", machine.registers(), first.registers())
        if expected.fault_pc is None:
            assert_same_memory(fleet, name)
    return expected


def assert_same_memory(fleet: Fleet, name: str) -> None:
    first, machine = next(iter(fleet.machines.values())), fleet.machines[name]
    num_words = fleet.config.tmem_words
    assert_equal(name, "TMEM", machine.read_tmem(0, num_words), first.read_tmem(0, num_words))
    (codes, scales), (first_codes, first_scales) = machine.read_act(), first.read_act()
    assert_equal(name, "ACT", codes, first_codes)
    assert_equal(name, "ACT scale", scales, first_scales)
    assert_equal(
        name, "DRAM", machine.read_dram(0, fleet.config.dram_bytes), first.read_dram(0, fleet.config.dram_bytes)
    )


def assert_equal(machine: str, what: str, got: NDArray[np.generic], expected: NDArray[np.generic]) -> None:
    """Bit equality; the message names the first place that differs."""
    if np.array_equal(got, expected):
        return
    places = np.argwhere(got != expected)
    place = tuple(int(index) for index in places[0])
    mine, theirs = (int(array[place]) & 0xFFFF_FFFF for array in (got, expected))
    raise AssertionError(f"{machine}: {what}{list(place)} is {mine:#x}, not {theirs:#x} ({len(places)} places differ)")
