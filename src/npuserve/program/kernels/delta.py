"""The gated delta rule: a matrix of state for each head that every position decays, corrects and reads.

With S [value_dim][key_dim], e = exp(-exp(A) softplus(a + bias)) and b' = sigmoid(b), a row does

    d = (v - e (S k)) b',   S = e S + d k^T,   o = S q

where q and k have length 1, and q is divided by the root of key_dim. DSTEP does it in card memory; where the machine
has no DSTEP, or not for such heads, a sequence of VOPs on a copy of S gives the same bits.
"""

import math

from npuserve.isa.fields import Address
from npuserve.isa.spec import DELTA_STEP_COLUMNS, DELTA_STEP_MAX_ROWS, BMode, VectorFunction
from npuserve.models.facts import DeltaFacts
from npuserve.program.assembler import Assembler
from npuserve.program.dram import WORDS_PER_SEGMENT
from npuserve.program.geometry import WORD
from npuserve.program.kernels.convolution import convolve, load_state
from npuserve.program.kernels.gated import gated, sigmoid
from npuserve.program.kernels.grid import Grid
from npuserve.program.kernels.heads import norm_heads, scale_heads, sum_squares
from npuserve.program.kernels.registers import Reg, SegmentWord
from npuserve.program.tmem import TmemLayout

LENGTH_EPS = 1e-6


class DeltaRule:
    """Emits the parts of a step of one kind of layer.

    Parts of a row from `qkv` on are pairs of a head of q and one of k | v | z | a | b.
    """

    def __init__(self, asm: Assembler, tmem: TmemLayout) -> None:
        assert tmem.geometry.facts.delta is not None
        self._asm, self._tmem = asm, tmem
        self._delta: DeltaFacts = tmem.geometry.facts.delta
        delta = self._delta
        self._q, self._k = tmem.qkv, tmem.qkv + delta.key_dim
        self._v = tmem.qkv + 2 * delta.keys
        self._z = tmem.qkv + delta.channels
        self._decay = self._z + delta.values
        self._beta = self._decay + delta.num_value_heads
        self.in_memory = (
            asm.machine.dstep and delta.key_dim in DELTA_STEP_COLUMNS and delta.value_dim <= DELTA_STEP_MAX_ROWS
        )

    def convolve(self, row: Address, rows: int, weights: int) -> None:
        """q, k and v of a segment's rows through their convolution, in place."""
        asm, tmem, size = self._asm, self._tmem, self._delta.channels
        projected = Address(row.register, row.offset + tmem.qkv)
        product = Address(row.register, row.offset + tmem.qkv + tmem.geometry.qkv)
        load_state(asm, tmem)
        newest = tmem.scores + tmem.geometry.conv_state
        asm.vop(VectorFunction.COPY, newest, projected, rows=rows, cols=size, strides=(size, tmem.row_stride, 0))
        convolve(asm, tmem, rows=rows, out=projected, product=product, weights=weights)

    def prepare(self, *, dt_bias: int, decay: int) -> None:
        """SiLU of q, k and v, lengths of q and k, decays and betas, of all rows; `decay` has -exp(A) log2 e."""
        asm, tmem, delta = self._asm, self._tmem, self._delta
        gated(asm, tmem, gate=tmem.qkv, up=None, out=tmem.qkv, size=delta.channels)
        self._set_lengths()
        rows, stride, heads = tmem.shape.rows, tmem.row_stride, delta.num_value_heads
        sigmoid(asm, part=tmem.rows + self._beta, rows=rows, size=heads, stride=stride)
        self._decays(tmem.rows + self._decay, dt_bias, decay)

    def _set_lengths(self) -> None:
        asm, tmem, delta = self._asm, self._tmem, self._delta
        rows, num_heads = tmem.shape.rows, 2 * delta.num_key_heads
        heads = Grid(tmem.rows + tmem.qkv, tmem.row_stride, delta.key_dim)
        sum_squares(asm, tmem, heads=heads, num_heads=num_heads, size=delta.key_dim)
        count, statistics = rows * num_heads, tmem.statistics
        asm.vop(VectorFunction.ADD, statistics, statistics, LENGTH_EPS, cols=count)
        asm.vop(VectorFunction.RSQRT, statistics, statistics, cols=count)
        asm.vop(
            VectorFunction.MUL,
            statistics,
            statistics,
            1 / math.sqrt(delta.key_dim),
            rows=rows * delta.num_key_heads,
            cols=1,
            strides=(2, 2, 0),
        )
        scale_heads(asm, tmem, heads=heads, num_heads=num_heads, size=delta.key_dim)

    def _decays(self, part: int, dt_bias: int, decay: int) -> None:
        """exp2(decay * softplus(x + bias)) with softplus(x) = max(x, 0) + ln 2 * log2(1 + exp2(-|x| log2 e))."""
        tmem, delta = self._tmem, self._delta
        size, stride, scratch = delta.num_value_heads, tmem.row_stride, tmem.scores

        def vop(func: VectorFunction, dst: int, a: int, b: int | float | None = None, **how: BMode) -> None:
            strides = tuple(size if place == scratch else stride for place in (dst, a))
            third = 0 if how else (size if b == scratch else stride)
            self._asm.vop(func, dst, a, b, rows=tmem.shape.rows, cols=size, strides=(*strides, third), **how)  # type: ignore[arg-type]

        vop(VectorFunction.ADD, part, part, dt_bias, mode=BMode.PER_COLUMN)
        vop(VectorFunction.ABS, scratch, part)
        vop(VectorFunction.MUL, scratch, scratch, -math.log2(math.e))
        vop(VectorFunction.EXP2, scratch, scratch)
        vop(VectorFunction.ADD, scratch, scratch, 1.0)
        vop(VectorFunction.LOG2, scratch, scratch)
        vop(VectorFunction.MUL, scratch, scratch, math.log(2))
        vop(VectorFunction.MAX, part, part, 0.0)
        vop(VectorFunction.ADD, part, part, scratch)
        vop(VectorFunction.MUL, part, part, decay, mode=BMode.PER_COLUMN)
        vop(VectorFunction.EXP2, part, part)

    def step(self) -> None:
        """The rule over all rows in card memory; results side by side in `attention`.

        DSTEP's gates and result have plain addresses, so there is one for each row and head. Rows of a head follow each
        other while its state is in the simulator's cache.
        """
        assert self.in_memory
        tmem = self._tmem
        for number, rows in enumerate(tmem.shape.segment_rows):
            self._load_state(Address(0, tmem.segments + number * WORDS_PER_SEGMENT))
            for head in range(self._delta.num_value_heads):
                for row in rows:
                    self._step_head(tmem.rows + row * tmem.row_stride, head)

    def _step_head(self, row: int, head: int) -> None:
        delta, tmem = self._delta, self._tmem
        self._asm.emit(
            "DSTEP",
            state=Address(Reg.STATE, head * tmem.geometry.head_state * WORD),
            qk=row + self._q + head // delta.group_size * 2 * delta.key_dim,
            v=row + self._v + head * delta.value_dim,
            rows=delta.value_dim,
            cols=delta.key_dim,
            g=row + self._decay + head,
            gs=self._beta - self._decay,
            o=row + tmem.attention + head * delta.value_dim,
        )

    def run(self, row: Address, rows: int) -> None:
        """The rule over a segment's rows by VOPs, head by head; results as those of `step`."""
        asm, delta, geometry = self._asm, self._delta, self._tmem.geometry
        self._load_state(Address(Reg.SEGMENT, 0))
        for register in (Reg.HEAD_KEYS, Reg.HEAD_VALUES, Reg.HEAD_GATES):
            asm.set(register, row)
        with asm.loop(delta.num_key_heads):
            for _ in range(delta.group_size):
                self._head(rows)
                asm.step(Reg.STATE, geometry.head_state * WORD)
                asm.step(Reg.HEAD_VALUES, delta.value_dim)
                asm.step(Reg.HEAD_GATES, 1)
            asm.step(Reg.HEAD_KEYS, 2 * delta.key_dim)

    def _load_state(self, segment: Address) -> None:
        """Reg.STATE at the heads' state of a segment."""
        self._asm.emit("RLD", rd=Reg.STATE, src=Address(segment.register, segment.offset + SegmentWord.STATE), raw=1)
        self._asm.step(Reg.STATE, self._tmem.geometry.heads_state_start * WORD)

    def begin(self) -> None:
        """Zeros for all heads of the current segment at the beginning of a conversation."""
        asm, tmem, size = self._asm, self._tmem, self._tmem.geometry.head_state
        delta = self._delta
        self._load_state(Address(Reg.SEGMENT, 0))
        asm.emit("RLD", rd=Reg.IS_NEW, src=Address(Reg.SEGMENT, SegmentWord.IS_NEW), raw=1)
        with asm.loop(Address(Reg.IS_NEW, 0)):
            strides = (delta.key_dim, 0, 0)
            asm.vop(VectorFunction.FILL, tmem.scores, b=0.0, rows=delta.value_dim, cols=delta.key_dim, strides=strides)
            for head in range(delta.num_value_heads):
                asm.emit("ST", dst=Address(Reg.STATE, head * size * WORD), src=tmem.scores, count=size)

    def _head(self, rows: int) -> None:
        asm, tmem, size = self._asm, self._tmem, self._tmem.geometry.head_state
        asm.emit("LD", src=Address(Reg.STATE, 0), dst=tmem.scores, count=size)
        if rows == 1:
            self._row()
        else:
            registers = (Reg.HEAD_KEYS, Reg.HEAD_VALUES, Reg.HEAD_GATES)
            with asm.loop(rows):
                self._row()
                for register in registers:
                    asm.step(register, tmem.row_stride)
            for register in registers:
                asm.step(register, -rows * tmem.row_stride)
        asm.emit("ST", dst=Address(Reg.STATE, 0), src=tmem.scores, count=size)

    def _row(self) -> None:
        asm, tmem, delta = self._asm, self._tmem, self._delta
        state, error = tmem.scores, tmem.scores + tmem.geometry.head_state
        q, k = Address(Reg.HEAD_KEYS, self._q), Address(Reg.HEAD_KEYS, self._k)
        v, out = Address(Reg.HEAD_VALUES, self._v), Address(Reg.HEAD_VALUES, tmem.attention)
        decay, beta = Address(Reg.HEAD_GATES, self._decay), Address(Reg.HEAD_GATES, self._beta)
        rows, cols = delta.value_dim, delta.key_dim

        def read(dst: int | Address, vector: Address) -> None:
            strides = (1, cols, 0)
            asm.vop(
                VectorFunction.RDOT, dst, state, vector, rows=rows, cols=cols, strides=strides, mode=BMode.PER_COLUMN
            )

        read(error, k)
        asm.vop(VectorFunction.MUL, error, error, decay, cols=rows, mode=BMode.PER_ROW)
        asm.vop(VectorFunction.SUB, error, v, error, cols=rows)
        asm.vop(VectorFunction.MUL, error, error, beta, cols=rows, mode=BMode.PER_ROW)
        asm.emit(
            "VOP",
            func=VectorFunction.OUTER,
            dst=state,
            a=decay,
            b=error,
            imm=k,
            bmode=BMode.PER_ROW,
            rows=rows,
            cols=cols,
            drs=cols,
            brs=1,
            dscalar=1,
        )
        read(out, q)

    def finish(self, weight: int, eps: float) -> None:
        """Norm each head's result and multiply it with SiLU of z, all rows."""
        asm, tmem, delta = self._asm, self._tmem, self._delta
        heads, size = delta.num_value_heads, delta.value_dim
        norm_heads(asm, tmem, part=tmem.attention, num_heads=heads, size=size, weight=weight, eps=eps)
        gated(asm, tmem, gate=self._z, up=tmem.attention, out=tmem.attention, size=delta.values)
