"""The sequencer's instructions: NOP, HALT, LI, ADDI, LOOP, BAR, RLD, WAITW."""

from npuserve.isa.spec import Compare
from npuserve.sim.arithmetic import f2i
from npuserve.sim.reference.state import Loop, Operands, State

MAX_LOOP_DEPTH = 4


def no_operation(state: State, operands: Operands) -> None:
    """NOP; also BAR, since a machine of one slice never waits for another."""


def halt(state: State, operands: Operands) -> None:
    """Stop, or with CHAIN load R[count] instructions from DRAM byte R[address] and start over with them."""
    if not operands["chain"]:
        state.halted = True
        return
    address, count = (int(state.registers[operands[name]]) for name in ("address", "count"))
    state.load_from_dram(address, count)
    state.start()


def load_immediate(state: State, operands: Operands) -> None:
    state.set_register(operands["rd"], operands["value"])


def add_immediate(state: State, operands: Operands) -> None:
    state.set_register(operands["rd"], int(state.registers[operands["ra"]]) + operands["value"])


def loop(state: State, operands: Operands) -> None:
    """Execute the next `body` instructions `count` times; what nests badly is refused whatever the count.

    Since bodies nest properly and no two end together, one instruction ends one body at most.
    """
    body, count = operands["body"], operands["count"]
    end = state.pc + body
    state.require(body > 0, "the loop body is empty")
    state.require(len(state.loops) < MAX_LOOP_DEPTH, f"loops nest to {MAX_LOOP_DEPTH}")
    if state.loops:
        outer = state.loops[-1].end
        state.require(end != outer, f"two loop bodies end on instruction {end}; put a NOP behind the inner one")
        state.require(end < outer, f"the loop body ends on instruction {end}, behind the outer one's end {outer}")
    if count:
        state.loops.append(Loop(state.pc + 1, end, count))
    else:
        state.next_pc = end + 1


def register_load(state: State, operands: Operands) -> None:
    """R[rd] = TMEM word, as an integer or (RAW) as it is, times `factor` with MUL; the low 32 bits."""
    word = state.tmem[state.tmem_grid(operands["src"], 1, 0)]
    value = int(word.item()) if operands["raw"] else int(f2i(word).item())
    if operands["mul"]:
        value *= operands["factor"]
    state.set_register(operands["rd"], value)


def wait_word(state: State, operands: Operands) -> None:
    """Nobody writes DRAM during a run here, so a wait that does not hold at once would never end."""
    compare = operands["compare"]
    state.require(compare in set(Compare), f"compare is {compare}, but there are EQ 0, NE 1 and GE 2")
    word = state.read_words(state.dram_grid(operands["src"], 1, 0))
    value = int(word.item())
    difference = ((value & operands["mask"]) - operands["ref"]) % (1 << 32)
    holds = {Compare.EQ: difference == 0, Compare.NE: difference != 0, Compare.GE: difference < 1 << 31}
    state.require(holds[Compare(compare)], f"the word {value:#x} never meets its condition")
    state.write_tmem(state.tmem_grid(operands["dst"], 1, 0), word)
