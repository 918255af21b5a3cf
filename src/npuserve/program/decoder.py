"""One step of a decoder as a program: rows in, keys and values stored, logits out."""

import numpy as np
from numpy.typing import NDArray

from npuserve.isa.fields import Address
from npuserve.isa.machine import MachineConfig
from npuserve.isa.spec import VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import WORDS_PER_SEGMENT, DramLayout
from npuserve.program.geometry import WORD
from npuserve.program.kernels.attention import Part, Tile, attend, store
from npuserve.program.kernels.head import head
from npuserve.program.kernels.heads import add_bias, copy_values, norm_heads, rotate_heads
from npuserve.program.kernels.linear import linear, quantize, rms_norm
from npuserve.program.kernels.registers import Reg
from npuserve.program.kernels.swiglu import swiglu
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
        self.dram, self.tmem, self.machine = dram, tmem, machine
        self.geometry, self.shape = dram.geometry, tmem.shape
        self.asm = Assembler(machine)

    def build(self) -> NDArray[np.uint32]:
        asm, facts = self.asm, self.geometry.facts
        self._load_rows()
        asm.set(Reg.LAYER, 0)
        asm.set(Reg.TABLE, self.dram.segments)
        with asm.loop(facts.num_layers):
            self._layer()
            asm.step(Reg.LAYER, self.dram.layer.stride)
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

    def _layer(self) -> None:
        asm, tmem, layer = self.asm, self.tmem, self.dram.layer
        asm.emit("LD", src=Address(Reg.LAYER, 0), dst=tmem.vectors, count=layer.vectors.size)
        asm.emit("LD", src=Address(Reg.TABLE, 0), dst=tmem.segments, count=self.shape.segments * WORDS_PER_SEGMENT)
        self._norm(layer.vectors.input_norm)
        linear(asm, layer.qkv, Reg.LAYER, out=tmem.rows + tmem.qkv, stride=tmem.row_stride, rows=self.shape.rows)
        self._heads()
        self._attention()
        self._project(tmem.attention, self.geometry.attention)
        linear(asm, layer.o, Reg.LAYER, out=tmem.rows, stride=tmem.row_stride, rows=self.shape.rows, accumulate=True)
        if self.geometry.facts.o_bias:
            self._bias(tmem.hidden, self.geometry.facts.hidden_size, layer.vectors.o_bias)
        self._norm(layer.vectors.post_norm)
        linear(
            asm, layer.gate_up, Reg.LAYER, out=tmem.rows + tmem.gate_up, stride=tmem.row_stride, rows=self.shape.rows
        )
        swiglu(asm, tmem)
        self._project(tmem.mlp, self.geometry.mlp)
        linear(asm, layer.down, Reg.LAYER, out=tmem.rows, stride=tmem.row_stride, rows=self.shape.rows, accumulate=True)

    def _norm(self, weight: int) -> None:
        self._rms_norm(0, self.shape.rows, self.tmem.vectors + weight)

    def _rms_norm(self, first_row: int, rows: int, weight: int) -> None:
        tmem, facts = self.tmem, self.geometry.facts
        rms_norm(
            self.asm,
            source=tmem.rows + first_row * tmem.row_stride,
            stride=tmem.row_stride,
            rows=rows,
            size=facts.hidden_size,
            columns=self.geometry.hidden,
            weight=weight,
            statistics=tmem.statistics,
            eps=facts.norm_eps,
        )

    def _project(self, part: int, columns: int) -> None:
        tmem = self.tmem
        quantize(self.asm, source=tmem.rows + part, stride=tmem.row_stride, rows=self.shape.rows, columns=columns)

    def _bias(self, part: int, size: int, bias: int) -> None:
        tmem = self.tmem
        add_bias(
            self.asm,
            out=tmem.rows + part,
            stride=tmem.row_stride,
            rows=self.shape.rows,
            size=size,
            bias=tmem.vectors + bias,
        )

    def _heads(self) -> None:
        asm, tmem, facts, vectors = self.asm, self.tmem, self.geometry.facts, self.dram.layer.vectors
        if facts.qkv_bias:
            self._bias(tmem.qkv, self.geometry.qkv, vectors.qkv_bias)
        if facts.qk_norm:
            q_weight, k_weight = tmem.vectors + vectors.q_norm, tmem.vectors + vectors.k_norm
            norm_heads(asm, tmem, first_head=0, num_heads=facts.num_heads, weight=q_weight, eps=facts.norm_eps)
            norm_heads(
                asm,
                tmem,
                first_head=facts.num_heads,
                num_heads=facts.num_kv_heads,
                weight=k_weight,
                eps=facts.norm_eps,
            )
        rotate_heads(asm, tmem)
        copy_values(asm, tmem)

    def _attention(self) -> None:
        """The prompt segment head by head over its rows, then each decode row over its heads."""
        asm, tmem, shape, kv = self.asm, self.tmem, self.shape, self.dram.kv
        if shape.prefill_rows:
            asm.set(Reg.SEGMENT, tmem.segments)
            store(asm, tmem, kv, row=Address(0, tmem.rows), rows=shape.prefill_rows)
            for q_head in range(self.geometry.facts.num_heads):
                attend(asm, tmem, kv, self._prompt_tile(q_head))
        if shape.decode_rows:
            first = 1 if shape.prefill_rows else 0
            asm.set(Reg.SEGMENT, tmem.segments + first * WORDS_PER_SEGMENT)
            asm.set(Reg.ROW, tmem.rows + shape.prefill_rows * tmem.row_stride)
            with asm.loop(shape.decode_rows):
                store(asm, tmem, kv, row=Address(Reg.ROW, 0), rows=1)
                attend(asm, tmem, kv, self._decode_tile())
                asm.step(Reg.SEGMENT, WORDS_PER_SEGMENT)
                asm.step(Reg.ROW, tmem.row_stride)

    def _prompt_tile(self, q_head: int) -> Tile:
        tmem, facts = self.tmem, self.geometry.facts
        return Tile(
            parts=(Part(q_head // facts.group_size, 0, self.shape.prefill_rows),),
            q=Address(0, tmem.rows + tmem.qk_heads + q_head * self.geometry.head),
            q_stride=tmem.row_stride,
            mask=Address(0, tmem.rows + tmem.mask),
            mask_stride=tmem.row_stride,
            out=Address(0, tmem.rows + tmem.attention + q_head * facts.head_dim),
            out_stride=tmem.row_stride,
        )

    def _decode_tile(self) -> Tile:
        """All heads of one row; groups wider than the machine's rows are cut."""
        tmem, facts = self.tmem, self.geometry.facts
        limit = min(self.machine.act_rows, self.machine.mcols)
        parts = tuple(
            Part(kv_head, kv_head * facts.group_size + first, min(limit, facts.group_size - first))
            for kv_head in range(facts.num_kv_heads)
            for first in range(0, facts.group_size, limit)
        )
        return Tile(
            parts=parts,
            q=Address(Reg.ROW, tmem.qk_heads),
            q_stride=self.geometry.head,
            mask=Address(Reg.ROW, tmem.mask),
            mask_stride=0,
            out=Address(Reg.ROW, tmem.attention),
            out_stride=facts.head_dim,
        )

    def _logits(self) -> None:
        asm, tmem, dram = self.asm, self.tmem, self.dram
        asm.emit("LD", src=dram.final_norm, dst=tmem.vectors, count=self.geometry.hidden)
        self._rms_norm(self.shape.rows - self.shape.logit_rows, self.shape.logit_rows, tmem.vectors)
        head(asm, tmem, dram)
