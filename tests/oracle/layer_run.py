"""A device's layers one by one: what each makes of a hidden state that is given to it.

A run of one layer reads the rows' hidden state from the step table like any program, and the machine's memory shows
what it has become. Given the layer before's result it is what the device computes in one run of all layers, to the
bit, at the cost of one.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from npuserve.drivers.registers import Control, Register
from npuserve.program.decoder import _Decoder
from npuserve.program.dram import BEAT, WORDS_PER_SEGMENT
from npuserve.program.geometry import WORD, round_up
from npuserve.program.kernels.registers import Reg
from npuserve.program.step_table import Segment, StepTable
from npuserve.program.tmem import Shape, TmemLayout
from npuserve.sim.native import NativeLink
from oracle.accuracy import Tokens
from simulated_device import Logits, Simulated

Hidden = NDArray[np.float32]


class _OneLayer(_Decoder):
    """The program of a step cut down to one layer, with logits behind it where the shape has some."""

    def build_layer(self, layer: int) -> NDArray[np.uint32]:
        asm, dram = self.asm, self.dram
        self._load_rows()
        asm.set(Reg.LAYER, dram.layer_starts[layer])
        asm.set(Reg.TABLE, dram.segments + layer * self.shape.segments * WORDS_PER_SEGMENT * WORD)
        self._layer()
        if self.shape.logit_rows:
            self._logits()
        asm.emit("HALT")
        return asm.program()


class LayerRun:
    """One conversation in slot 0; the model's layers have to be of one kind."""

    def __init__(self, simulated: Simulated) -> None:
        assert isinstance(simulated.link, NativeLink)
        self._link, self._dram = simulated.link, simulated.dram
        self._machine = simulated.link.machine.config
        self._table = StepTable(simulated.dram, simulated.image.embedding)
        self._programs: dict[tuple[int, Shape], NDArray[np.uint32]] = {}

    def embedded(self, tokens: Tokens) -> Hidden:
        """The hidden state before the first layer, [tokens, hidden_size]."""
        shape = Shape(len(tokens), 0, 0)
        zeros = np.zeros(len(tokens), np.int64)
        records = self._table.rows(tokens, zeros, zeros, shape).view(np.float32).reshape(len(tokens), -1)
        return records[:, : self._dram.geometry.facts.hidden_size].copy()

    def after(self, layer: int, hidden: Hidden) -> Hidden:
        """What a layer makes of the hidden state of positions from 0 on, both [tokens, hidden_size]."""
        return np.concatenate([self._read(shape) for shape in self._steps(layer, hidden, logits=False)])

    def logits(self, hidden: Hidden) -> Logits:
        """[tokens, vocab_size] of the hidden state before the last layer, which is run once more."""
        last = self._dram.geometry.facts.num_layers - 1
        size = self._dram.geometry.facts.vocab_size
        parts = []
        for shape in self._steps(last, hidden, logits=True):
            data = self._link.read_dram(self._dram.logits, shape.logit_rows * size * WORD)
            parts.append(data.view(np.float32).reshape(-1, size).copy())
        return np.concatenate(parts)

    def _steps(self, layer: int, hidden: Hidden, *, logits: bool) -> Iterator[Shape]:
        """Runs the rows in steps of as many as the device takes; yields behind each."""
        for start in range(0, len(hidden), self._dram.max_rows):
            rows = hidden[start : start + self._dram.max_rows]
            shape = Shape(len(rows), 0, len(rows) if logits else 0)
            self._write(Segment(0, start, len(rows)), rows, shape)
            self._run(self._program(layer, shape))
            yield shape

    def _write(self, segment: Segment, hidden: Hidden, shape: Shape) -> None:
        positions = np.arange(segment.position, segment.position + segment.num_rows)
        masks_from = np.full(segment.num_rows, segment.full_blocks * 256)
        data = self._table.rows(np.zeros_like(positions), positions, masks_from, shape)
        records = data.view(np.float32).reshape(segment.num_rows, -1)
        records[:, : hidden.shape[1]] = hidden
        self._link.write_dram(self._dram.rows, records.view(np.uint8).reshape(-1))
        self._link.write_dram(self._dram.segments, self._table.segments([segment]))

    def _program(self, layer: int, shape: Shape) -> NDArray[np.uint32]:
        if (program := self._programs.get((layer, shape))) is None:
            tmem = TmemLayout(self._dram.geometry, shape, self._machine)
            program = _OneLayer(self._dram, tmem, self._machine).build_layer(layer)
            self._programs[layer, shape] = program
        return program

    def _run(self, program: NDArray[np.uint32]) -> None:
        link, data = self._link, program.view(np.uint8).reshape(-1)
        link.write_dram(self._dram.programs, np.pad(data, (0, round_up(data.size, BEAT) - data.size)))
        link.write_register(Register.PROG_ADDR, self._dram.programs)
        link.write_register(Register.PROG_N, len(program))
        link.write_register(Register.CTRL, Control.LOAD)
        link.write_register(Register.CTRL, Control.RUN)
        link.write_register(Register.CTRL, Control(0))

    def _read(self, shape: Shape) -> Hidden:
        tmem = TmemLayout(self._dram.geometry, shape, self._machine)
        words = self._link.machine.read_tmem(tmem.rows, shape.rows * tmem.row_stride)
        rows = words.view(np.float32).reshape(shape.rows, tmem.row_stride)
        return rows[:, tmem.hidden : tmem.hidden + self._dram.geometry.facts.hidden_size].copy()
