"""Moves of raw words: LD, ST, GATHER. Nothing is flushed."""

import numpy as np

from npuserve.sim.reference.state import Operands, State


def load(state: State, operands: Operands) -> None:
    """T[dst + i] = M32[src + 4i]; no words are legal and do nothing."""
    if count := operands["count"]:
        words = state.read_words(state.dram_grid(operands["src"], count, 4))
        state.write_tmem(state.tmem_grid(operands["dst"], count, 1), words)


def store(state: State, operands: Operands) -> None:
    """M32[dst + 4i] = T[src + i]; no words are legal and do nothing."""
    if count := operands["count"]:
        words = state.tmem[state.tmem_grid(operands["src"], count, 1)]
        state.write_words(state.dram_grid(operands["dst"], count, 4), words)


def gather(state: State, operands: Operands) -> None:
    """T[dst + r*drs + c] = T[src + r*srs + c]: with one slice only its own segment, so `seg` does not matter."""
    rows, cols = operands["rows"], operands["cols"]
    state.require(rows > 0 and cols > 0, f"{rows} rows of {cols} columns, but both must be 1 or more")
    source = state.tmem_grid(operands["src"], rows, operands["srs"], cols)
    target = state.tmem_grid(operands["dst"], rows, operands["drs"], cols)
    state.require(not np.intersect1d(source, target).size, "source and destination overlap")
    state.write_tmem(target, state.tmem[source])
