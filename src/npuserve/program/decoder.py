"""One step of a decoder as a program: rows in, keys and values stored, logits out."""

import numpy as np
from numpy.typing import NDArray

from npuserve.isa.fields import Address
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import DIRECTORY_WORDS, WORDS_PER_SEGMENT, DramLayout
from npuserve.program.geometry import WORD
from npuserve.program.kernels.head import head
from npuserve.program.kernels.linear import rms_norm
from npuserve.program.kernels.registers import Reg
from npuserve.program.layer_body import LayerBody
from npuserve.program.tmem import Shape, TmemLayout


def build(dram: DramLayout, shape: Shape, machine: MachineConfig) -> NDArray[np.uint32]:
    """The program, uint32 [instructions, 8], for every step of this shape; it has no arguments.

    The host writes the step table (`step_table.py`) before each run. Raises ProgramError when the shape does not
    fit the machine.
    """
    tmem = TmemLayout(dram.geometry, shape, machine)
    return _Decoder(dram, tmem, machine).build()


class _Decoder:
    def __init__(self, dram: DramLayout, tmem: TmemLayout, machine: MachineConfig) -> None:
        self.dram, self.tmem = dram, tmem
        self.geometry, self.shape = dram.geometry, tmem.shape
        self.asm = Assembler(machine)

    def build(self) -> NDArray[np.uint32]:
        asm, facts = self.asm, self.geometry.facts
        self._load_rows()
        asm.set(Reg.LAYER, 0)
        if self.dram.directory_bytes:
            asm.set(Reg.DIRECTORY, self.dram.directory)
        asm.set(Reg.TABLE, self.dram.segments)
        with asm.loop(facts.num_layers):
            self._layer()
            asm.step(Reg.TABLE, self.shape.segments * WORDS_PER_SEGMENT * WORD)
        if self.shape.logit_rows:
            self._logits()
        asm.emit("HALT")
        return asm.program()

    def _load_rows(self) -> None:
        """Row records from the step table, and zeros where padding will be read."""
        asm, tmem = self.asm, self.tmem
        record = tmem.record_words
        asm.set(Reg.TABLE, self.dram.rows)
        asm.set(Reg.ROW, tmem.rows)
        with asm.loop(self.shape.rows):
            asm.emit("LD", src=Address(Reg.TABLE, 0), dst=Address(Reg.ROW, 0), count=record)
            asm.step(Reg.TABLE, record * WORD)
            asm.step(Reg.ROW, tmem.row_stride)
        asm.vop(
            VectorFunction.FILL,
            tmem.rows + tmem.qk_heads,
            b=0.0,
            rows=self.shape.rows,
            cols=tmem.row_stride - tmem.qk_heads,
            strides=(tmem.row_stride, 0, 0),
        )
        if tmem.has_inputs:
            asm.set(Reg.INPUTS, self.dram.inputs)
            asm.vop(
                VectorFunction.COPY,
                tmem.rows + tmem.embedding,
                tmem.rows + tmem.hidden,
                rows=self.shape.rows,
                cols=self.geometry.hidden,
                strides=(tmem.row_stride, tmem.row_stride, 0),
            )

    def _layer(self) -> None:
        """One body, or one for each kind of layer inside a loop that runs once or not at all: the only branch."""
        asm, tmem, num_kinds = self.asm, self.tmem, len(self.dram.kinds)
        if num_kinds == 1:
            LayerBody(asm, self.dram, tmem, 0).emit()
            asm.step(Reg.LAYER, self.dram.layer.stride)
            return
        asm.emit("LD", src=Address(Reg.DIRECTORY, 0), dst=tmem.directory, count=DIRECTORY_WORDS)
        asm.step(Reg.DIRECTORY, DIRECTORY_WORDS * WORD)
        asm.emit("RLD", rd=Reg.LAYER, src=tmem.directory, raw=1)
        for kind in range(num_kinds):
            asm.emit("RLD", rd=Reg.KIND, src=tmem.directory + 1 + kind, raw=1)
            with asm.loop(Address(Reg.KIND, 0)):
                LayerBody(asm, self.dram, tmem, kind).emit()

    def _logits(self) -> None:
        asm, tmem, dram, facts = self.asm, self.tmem, self.dram, self.geometry.facts
        first_row = self.shape.rows - self.shape.logit_rows
        asm.emit("LD", src=dram.final_norm, dst=tmem.vectors, count=self.geometry.hidden)
        rms_norm(
            asm,
            source=tmem.rows + first_row * tmem.row_stride,
            stride=tmem.row_stride,
            rows=self.shape.logit_rows,
            size=facts.hidden_size,
            columns=self.geometry.hidden,
            weight=tmem.vectors,
            statistics=tmem.statistics,
            eps=facts.norm_eps,
            paired=dram.head.paired,
        )
        head(asm, tmem, dram)
