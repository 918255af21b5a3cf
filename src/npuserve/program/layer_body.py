"""One layer's share of a step, for one kind of layer."""

from collections.abc import Callable

from npuserve.isa.fields import Address
from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import WORDS_PER_SEGMENT, DramLayout, Matrix
from npuserve.program.geometry import BLOCK, WORD
from npuserve.program.kernels.attention import Part, Tile, attend, store
from npuserve.program.kernels.convolution import short_convolution
from npuserve.program.kernels.delta import DeltaRule
from npuserve.program.kernels.gated import gate_by_sigmoid, gated
from npuserve.program.kernels.heads import add_bias, copy_values, norm_heads, rotate_heads
from npuserve.program.kernels.linear import linear, norm_rows, quantize, rms_norm
from npuserve.program.kernels.registers import Reg
from npuserve.program.tmem import TmemLayout


class LayerBody:
    """Emits the instructions that take the rows through a layer of kind number `kind`.

    They expect the addresses of the layer's part of the image and of its segment words in Reg.LAYER and Reg.TABLE.
    """

    def __init__(self, asm: Assembler, dram: DramLayout, tmem: TmemLayout, kind: int) -> None:
        self.asm, self.tmem = asm, tmem.of(kind)
        self.layer, self.kv = dram.kinds[kind], dram.kv_kinds[kind]
        self.geometry, self.shape = self.tmem.geometry, tmem.shape

    def emit(self) -> None:
        asm, tmem, layer, names = self.asm, self.tmem, self.layer, self.geometry.facts.names
        for start, size in tmem.stale_padding:
            self._clear(start, size)
        asm.emit("LD", src=Address(Reg.LAYER, 0), dst=tmem.vectors, count=layer.vectors.size)
        asm.emit("LD", src=Address(Reg.TABLE, 0), dst=tmem.segments, count=self.shape.segments * WORDS_PER_SEGMENT)
        self._norm(layer.vectors.input_norm, layer.qkv)
        self._linear(layer.qkv, tmem.qkv)
        if self.geometry.facts.qkv_bias:
            self._bias(tmem.qkv, self.geometry.qkv, layer.vectors.qkv_bias)
        if self.geometry.facts.delta:
            self._delta_rule()
        elif self.geometry.facts.conv_taps:
            self._convolution()
        else:
            self._heads()
            self._attention()
            self._gate_heads()
        self._project(tmem.attention, layer.o)
        self._add(layer.o, layer.vectors.after_attention if names.after_attention else None)
        if self.geometry.facts.o_bias:
            self._bias(tmem.hidden, self.geometry.facts.hidden_size, layer.vectors.o_bias)
        self._norm(layer.vectors.post_norm, layer.gate_up)
        self._linear(layer.gate_up, tmem.gate_up)
        size = self.geometry.facts.intermediate_size
        gated(asm, tmem, gate=tmem.gate_up, up=tmem.gate_up + size, out=tmem.mlp, size=size)
        self._project(tmem.mlp, layer.down)
        self._add(layer.down, layer.vectors.after_mlp if names.after_mlp else None)
        if self.geometry.facts.input_size:
            self._own_input()
        if names.scalar:
            self._scale(layer.vectors.scalar)

    def _linear(self, matrix: Matrix, part: int) -> None:
        tmem = self.tmem
        linear(self.asm, matrix, Reg.LAYER, out=tmem.rows + part, stride=tmem.row_stride, rows=self.shape.rows)

    def _add(self, matrix: Matrix, norm: int | None) -> None:
        """hidden += matrix @ ACT, or the norm of it."""
        asm, tmem, rows = self.asm, self.tmem, self.shape.rows
        if norm is None:
            linear(asm, matrix, Reg.LAYER, out=tmem.rows, stride=tmem.row_stride, rows=rows, accumulate=True)
            return
        self._linear(matrix, tmem.result)
        self._norm_part(tmem.result, self.geometry.facts.hidden_size, norm)
        self._add_part(tmem.hidden, tmem.rows + tmem.result, tmem.row_stride, self.geometry.facts.hidden_size)

    def _norm_part(self, part: int, size: int, weight: int) -> None:
        tmem = self.tmem
        norm_rows(
            self.asm,
            source=tmem.rows + part,
            stride=tmem.row_stride,
            rows=self.shape.rows,
            size=size,
            weight=tmem.vectors + weight,
            statistics=tmem.statistics,
            eps=self.geometry.facts.norm_eps,
        )

    def _add_part(self, part: int, addend: int, stride: int, size: int) -> None:
        """Add the rows at TMEM address `addend` to a part of the rows."""
        tmem, out = self.tmem, self.tmem.rows + part
        strides = (tmem.row_stride, tmem.row_stride, stride)
        self.asm.vop(VectorFunction.ADD, out, out, addend, rows=self.shape.rows, cols=size, strides=strides)

    def _own_input(self) -> None:
        """What belongs to the token and this layer: the host's numbers and a share of the embedding's projection."""
        asm, tmem, layer, size = self.asm, self.tmem, self.layer, self.geometry.facts.input_size
        count = self.shape.rows * size
        asm.emit("LD", src=Address(Reg.INPUTS, 0), dst=tmem.inputs, count=count)
        asm.step(Reg.INPUTS, count * WORD)
        self._project(tmem.embedding, layer.inputs)
        self._linear(layer.inputs, tmem.input)
        self._norm_part(tmem.input, size, layer.vectors.inputs_norm)
        self._add_part(tmem.input, tmem.inputs, size, size)
        self._project(tmem.hidden, layer.input_gate)
        self._linear(layer.input_gate, tmem.input_gate)
        gated(asm, tmem, gate=tmem.input_gate, up=tmem.input, out=tmem.input_gate, size=size)
        if padding := self.geometry.input - size:
            self._clear(tmem.input_gate + size, padding)
        self._project(tmem.input_gate, layer.input_projection)
        self._add(layer.input_projection, layer.vectors.after_input)

    def _scale(self, scalar: int) -> None:
        tmem = self.tmem
        self.asm.vop(
            VectorFunction.MUL,
            tmem.rows,
            tmem.rows,
            tmem.vectors + scalar,
            rows=self.shape.rows,
            cols=self.geometry.facts.hidden_size,
            strides=(tmem.row_stride, tmem.row_stride, 0),
            mode=BMode.PER_ROW,
        )

    def _norm(self, weight: int, consumer: Matrix) -> None:
        tmem, facts = self.tmem, self.geometry.facts
        rms_norm(
            self.asm,
            source=tmem.rows,
            stride=tmem.row_stride,
            rows=self.shape.rows,
            size=facts.hidden_size,
            columns=self.geometry.hidden,
            weight=tmem.vectors + weight,
            statistics=tmem.statistics,
            eps=facts.norm_eps,
            paired=consumer.paired,
        )

    def _project(self, part: int, consumer: Matrix) -> None:
        """Quantize a part of the rows for the matrix that reads it."""
        tmem = self.tmem
        quantize(
            self.asm,
            source=tmem.rows + part,
            stride=tmem.row_stride,
            rows=self.shape.rows,
            columns=consumer.blocks * BLOCK,
            paired=consumer.paired,
        )

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
        asm, tmem, facts, vectors = self.asm, self.tmem, self.geometry.facts, self.layer.vectors
        own = self.geometry.num_own_kv_heads
        norms: list[tuple[int, int, int | None]] = []
        if facts.qk_norm:
            norms.append((0, facts.num_heads, tmem.vectors + vectors.q_norm))
        if facts.qk_norm and own:
            norms.append((facts.num_heads, own, tmem.vectors + vectors.k_norm))
        if facts.v_norm and own:
            norms.append((facts.num_heads + own, own, None))
        for first_head, num_heads, weight in norms:
            part = tmem.qkv + first_head * facts.head_dim
            norm_heads(
                asm, tmem, part=part, num_heads=num_heads, size=facts.head_dim, weight=weight, eps=facts.norm_eps
            )
        rotate_heads(asm, tmem)
        copy_values(asm, tmem)

    def _attention(self) -> None:
        """The prompt segment head by head over its rows, then each decode row over its heads."""
        asm, tmem, kv = self.asm, self.tmem, self.kv

        def prompt(row: Address, rows: int) -> None:
            if self.geometry.num_own_kv_heads:
                store(asm, tmem, kv, row=row, rows=rows)
            for q_head in range(self.geometry.facts.num_heads):
                attend(asm, tmem, kv, self._prompt_tile(q_head))

        def decode(row: Address) -> None:
            if self.geometry.num_own_kv_heads:
                store(asm, tmem, kv, row=row, rows=1)
            attend(asm, tmem, kv, self._decode_tile())

        self._segments(prompt, decode)

    def _gate_heads(self) -> None:
        """The gates stand behind q, k and v."""
        tmem, facts = self.tmem, self.geometry.facts
        if not facts.output_gate:
            return
        size = facts.num_heads * facts.head_dim
        gate = tmem.qkv + (facts.num_heads + 2 * facts.num_kv_heads) * facts.head_dim
        gate_by_sigmoid(
            self.asm,
            out=tmem.rows + tmem.attention,
            gate=tmem.rows + gate,
            rows=self.shape.rows,
            size=size,
            stride=tmem.row_stride,
        )

    def _delta_rule(self) -> None:
        tmem, vectors = self.tmem, self.layer.vectors
        rule = DeltaRule(self.asm, tmem)

        def convolve(row: Address, rows: int = 1) -> None:
            rule.convolve(row, rows, tmem.vectors + vectors.taps)

        def begin(row: Address, rows: int = 1) -> None:
            rule.begin()

        def run(row: Address, rows: int = 1) -> None:
            rule.run(row, rows)

        self._segments(convolve, convolve)
        rule.prepare(dt_bias=tmem.vectors + vectors.dt_bias, decay=tmem.vectors + vectors.decay)
        self._segments(begin, begin)
        if rule.in_memory:
            rule.step()
        else:
            self._segments(run, run)
        rule.finish(tmem.vectors + vectors.delta_norm, self.geometry.facts.norm_eps)

    def _convolution(self) -> None:
        facts, weights = self.geometry.facts, self.tmem.vectors + self.layer.vectors.taps
        bias = weights + facts.conv_taps * facts.hidden_size if facts.qkv_bias else None

        def segment(row: Address, rows: int = 1) -> None:
            short_convolution(self.asm, self.tmem, row=row, rows=rows, weights=weights, bias=bias)

        self._segments(segment, segment)

    def _segments(self, prompt: Callable[[Address, int], None], decode: Callable[[Address], None]) -> None:
        """The prompt segment with its first row and their number, then each decode row in a hardware loop.

        Reg.SEGMENT has the TMEM address of the segment's words meanwhile.
        """
        asm, tmem, shape = self.asm, self.tmem, self.shape
        if shape.prefill_rows:
            asm.set(Reg.SEGMENT, tmem.segments)
            prompt(Address(0, tmem.rows), shape.prefill_rows)
        if shape.decode_rows:
            first = 1 if shape.prefill_rows else 0
            asm.set(Reg.SEGMENT, tmem.segments + first * WORDS_PER_SEGMENT)
            asm.set(Reg.ROW, tmem.rows + shape.prefill_rows * tmem.row_stride)
            with asm.loop(shape.decode_rows):
                decode(Address(Reg.ROW, 0))
                asm.step(Reg.SEGMENT, WORDS_PER_SEGMENT)
                asm.step(Reg.ROW, tmem.row_stride)

    def _prompt_tile(self, q_head: int) -> Tile:
        tmem, facts = self.tmem, self.geometry.facts
        return Tile(
            parts=(Part(q_head // facts.group_size, 0, self.shape.prefill_rows),),
            q=Address(0, tmem.rows + tmem.qk_heads + q_head * self.geometry.head),
            q_stride=tmem.row_stride,
            first_mask=Address(0, tmem.rows + tmem.first_mask),
            mask=Address(0, tmem.rows + tmem.mask),
            mask_stride=tmem.row_stride,
            out=Address(0, tmem.rows + tmem.attention + q_head * facts.head_dim),
            out_stride=tmem.row_stride,
        )

    def _decode_tile(self) -> Tile:
        """All heads of one row; groups wider than the machine's rows are cut."""
        tmem, facts = self.tmem, self.geometry.facts
        limit = min(self.asm.machine.act_rows, self.asm.machine.mcols)
        parts = tuple(
            Part(kv_head, kv_head * facts.group_size + first, min(limit, facts.group_size - first))
            for kv_head in range(facts.num_kv_heads)
            for first in range(0, facts.group_size, limit)
        )
        return Tile(
            parts=parts,
            q=Address(Reg.ROW, tmem.qk_heads),
            q_stride=self.geometry.head,
            first_mask=Address(Reg.ROW, tmem.first_mask),
            mask=Address(Reg.ROW, tmem.mask),
            mask_stride=0,
            out=Address(Reg.ROW, tmem.attention),
            out_stride=facts.head_dim,
        )

    def _clear(self, part: int, size: int) -> None:
        tmem = self.tmem
        self.asm.vop(
            VectorFunction.FILL,
            tmem.rows + part,
            b=0.0,
            rows=self.shape.rows,
            cols=size,
            strides=(tmem.row_stride, 0, 0),
        )
