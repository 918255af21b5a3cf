"""Sizes of the machines we build programs for. Results never depend on them; what fits does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """One configuration: `depth` is D (bytes of a block), memories in their own units; `dstep` says whether the machine
    has that instruction."""

    name: str
    depth: int = 128
    mcols: int = 4
    act_rows: int = 4
    act_blocks: int = 128
    lanes: int = 8
    tmem_words: int = 65_536
    imem_instructions: int = 4_096
    dram_bytes: int = 4 << 30
    dstep: bool = True


BOARD = MachineConfig("board")
WIDE = MachineConfig("wide", mcols=64, act_rows=64, tmem_words=1 << 20, imem_instructions=65_536)
MACHINES = {machine.name: machine for machine in (BOARD, WIDE)}
