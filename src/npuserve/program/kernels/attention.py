"""Attention over a slot's cache: keys and values in, softmax over blocks of 256 positions, result out.

The softmax runs online: a tile keeps each row's maximum m, sum l and accumulator, and each block rescales them by
alpha = exp2(m - m'). Scores are in units of log2 (the scale stands in q's weights). Blocks that a row sees in part
start from a mask tile of -0 (visible) and -inf: s + -0 is s, so a row's bits do not depend on which of its blocks
were masked, and a block it does not see at all changes nothing.
"""

from dataclasses import dataclass

from npuserve.isa.fields import Address
from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import KvLayout
from npuserve.program.geometry import ATTENTION_BLOCK, BLOCK, WORD
from npuserve.program.kernels.registers import Reg, SegmentWord
from npuserve.program.tmem import TmemLayout

SCORE_FLOOR = -1e30
MASK_STEP = ATTENTION_BLOCK


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a tile that share a key-value head."""

    kv_head: int
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of scores that are computed together, with where their q, masks and result stand (strides in words).

    `first_mask` is the one for the first blocks of a window.
    """

    parts: tuple[Part, ...]
    q: Address
    q_stride: int
    first_mask: Address
    mask: Address
    mask_stride: int
    out: Address
    out_stride: int

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)


def store(asm: Assembler, tmem: TmemLayout, kv: KvLayout, *, row: Address, rows: int) -> None:
    """Quantize `rows` rows' keys and values into the cache at the segment's write addresses.

    A key is a row of bytes with a scale per block; a value is a column of V^T with one scale.
    """
    geometry = tmem.geometry
    load_addresses(asm, SegmentWord.WRITE_KEYS)
    for head in range(geometry.num_own_kv_heads):
        key = tmem.qk_heads + (geometry.facts.num_heads + head) * geometry.head
        asm.emit(
            "QST",
            src=Address(row.register, row.offset + key),
            srs=tmem.row_stride,
            rows=rows,
            kb=geometry.head // BLOCK,
            dst=Address(Reg.KEYS, head * kv.k_head),
            drs=kv.k_row,
            es=1,
            sdst=Address(Reg.KEY_SCALES, head * kv.k_scale_head),
        )
        asm.emit(
            "QST",
            src=Address(row.register, row.offset + tmem.v_heads + head * geometry.head),
            srs=tmem.row_stride,
            rows=rows,
            kb=geometry.head // BLOCK,
            dst=Address(Reg.VALUES, head * kv.v_head),
            drs=1,
            es=geometry.v_row_stride_bytes,
            sdst=Address(Reg.VALUE_SCALES, head * kv.v_scale_head),
            row_scale=1,
            half=int(geometry.value_rows < geometry.head),
        )


def load_addresses(asm: Assembler, first: SegmentWord) -> None:
    """The four cache addresses of a segment, from word `first` on, into their registers."""
    for index, register in enumerate((Reg.KEYS, Reg.KEY_SCALES, Reg.VALUES, Reg.VALUE_SCALES)):
        asm.emit("RLD", rd=register, src=Address(Reg.SEGMENT, first + index), raw=1)


def attend(asm: Assembler, tmem: TmemLayout, kv: KvLayout, tile: Tile) -> None:
    """One tile's softmax over all blocks of its segment; the result is written at tile.out, [rows][head_dim]."""
    facts, rows = tmem.geometry.facts, tile.num_rows
    load_addresses(asm, SegmentWord.KEYS)
    asm.emit("RLD", rd=Reg.FULL_BLOCKS, src=Address(Reg.SEGMENT, SegmentWord.FULL_BLOCKS), raw=1)
    _quantize_queries(asm, tmem, tile)
    softmax = Softmax(tmem, rows)
    asm.vop(VectorFunction.FILL, softmax.maximum, b=SCORE_FLOOR, cols=rows)
    asm.vop(VectorFunction.FILL, softmax.total, b=0.0, cols=rows)
    asm.vop(VectorFunction.FILL, tmem.accumulator, b=0.0, cols=rows * facts.head_dim)
    if facts.window is not None:
        _masked_blocks(asm, tmem, kv, tile, softmax, SegmentWord.FIRST_BLOCKS, tile.first_mask)
    with asm.loop(Address(Reg.FULL_BLOCKS, 0)):
        _block(asm, tmem, kv, tile, softmax, masked=False)
    _masked_blocks(asm, tmem, kv, tile, softmax, SegmentWord.MASKED_BLOCKS, tile.mask)
    asm.vop(VectorFunction.RECIP, softmax.total, softmax.total, cols=rows)
    asm.vop(
        VectorFunction.MUL,
        tile.out,
        tmem.accumulator,
        softmax.total,
        rows=rows,
        cols=facts.head_dim,
        strides=(tile.out_stride, facts.head_dim, 1),
        mode=BMode.PER_ROW,
    )


def _masked_blocks(
    asm: Assembler,
    tmem: TmemLayout,
    kv: KvLayout,
    tile: Tile,
    softmax: "Softmax",
    count: SegmentWord,
    mask: Address,
) -> None:
    asm.emit("RLD", rd=Reg.MASKED_BLOCKS, src=Address(Reg.SEGMENT, count), raw=1)
    asm.set(Reg.MASK, mask)
    with asm.loop(Address(Reg.MASKED_BLOCKS, 0)):
        _block(asm, tmem, kv, tile, softmax, masked=True)
        asm.step(Reg.MASK, MASK_STEP)


class Softmax:
    """Addresses of a tile's running values, one word a row."""

    def __init__(self, tmem: TmemLayout, num_rows: int) -> None:
        stride = tmem.softmax_stride
        self.maximum = tmem.softmax
        self.block_maximum = tmem.softmax + stride
        self.alpha = tmem.softmax + 2 * stride
        self.total = tmem.softmax + 3 * stride
        self.block_total = tmem.softmax + 4 * stride
        self.num_rows = num_rows


def _query_block(tmem: TmemLayout, index: int) -> int:
    return index * (tmem.geometry.head // BLOCK)


def _quantize_queries(asm: Assembler, tmem: TmemLayout, tile: Tile) -> None:
    for index, part in enumerate(tile.parts):
        asm.emit(
            "QACT",
            src=Address(tile.q.register, tile.q.offset + part.first_row * tile.q_stride),
            srs=tile.q_stride,
            rows=part.num_rows,
            kb=tmem.geometry.head // BLOCK,
            ab=_query_block(tmem, index),
        )


def _block(asm: Assembler, tmem: TmemLayout, kv: KvLayout, tile: Tile, softmax: Softmax, *, masked: bool) -> None:
    rows = tile.num_rows
    if masked:
        asm.vop(
            VectorFunction.COPY,
            tmem.scores,
            Address(Reg.MASK, 0),
            rows=rows,
            cols=ATTENTION_BLOCK,
            strides=(ATTENTION_BLOCK, tile.mask_stride, 0),
        )
    _scores(asm, tmem, kv, tile, masked=masked)
    asm.vop(
        VectorFunction.RMAX,
        softmax.block_maximum,
        tmem.scores,
        rows=rows,
        cols=ATTENTION_BLOCK,
        strides=(1, ATTENTION_BLOCK, 0),
    )
    asm.vop(VectorFunction.MAX, softmax.block_maximum, softmax.maximum, softmax.block_maximum, cols=rows)
    asm.vop(VectorFunction.EXP2SUB, softmax.alpha, softmax.maximum, softmax.block_maximum, cols=rows)
    asm.vop(VectorFunction.COPY, softmax.maximum, softmax.block_maximum, cols=rows)
    asm.vop(
        VectorFunction.EXP2SUB,
        tmem.scores,
        tmem.scores,
        softmax.block_maximum,
        rows=rows,
        cols=ATTENTION_BLOCK,
        strides=(ATTENTION_BLOCK, ATTENTION_BLOCK, 1),
        mode=BMode.PER_ROW,
    )
    asm.vop(
        VectorFunction.RSUM,
        softmax.block_total,
        tmem.scores,
        rows=rows,
        cols=ATTENTION_BLOCK,
        strides=(1, ATTENTION_BLOCK, 0),
    )
    asm.vop(VectorFunction.MUL, softmax.total, softmax.total, softmax.alpha, cols=rows)
    asm.vop(VectorFunction.ADD, softmax.total, softmax.total, softmax.block_total, cols=rows)
    _weighted_values(asm, tmem, kv, tile, softmax)
    asm.step(Reg.KEYS, ATTENTION_BLOCK * kv.k_row)
    asm.step(Reg.KEY_SCALES, ATTENTION_BLOCK * kv.k_scale_row)
    asm.step(Reg.VALUES, ATTENTION_BLOCK)
    asm.step(Reg.VALUE_SCALES, ATTENTION_BLOCK * WORD)


def _scores(asm: Assembler, tmem: TmemLayout, kv: KvLayout, tile: Tile, *, masked: bool) -> None:
    for index, part in enumerate(tile.parts):
        asm.emit(
            "MM",
            sa=Address(Reg.KEYS, part.kv_head * kv.k_head),
            rs=kv.k_row,
            ssa=Address(Reg.KEY_SCALES, part.kv_head * kv.k_scale_head),
            srs=kv.k_scale_row,
            n=ATTENTION_BLOCK,
            kb=tmem.geometry.head // BLOCK,
            m=part.num_rows,
            ab=_query_block(tmem, index),
            out=tmem.scores + part.first_row * ATTENTION_BLOCK,
            ors=ATTENTION_BLOCK,
            acc=int(masked),
        )


def _weighted_values(asm: Assembler, tmem: TmemLayout, kv: KvLayout, tile: Tile, softmax: Softmax) -> None:
    """accumulator = accumulator * alpha + P V; the values' scales are folded into P before it is quantized."""
    head_dim = tmem.geometry.facts.head_dim
    block = _query_block(tmem, len(tile.parts))
    for part in tile.parts:
        scales = tmem.value_scales + part.kv_head * ATTENTION_BLOCK
        asm.emit(
            "LD",
            src=Address(Reg.VALUE_SCALES, part.kv_head * kv.v_scale_head),
            dst=scales,
            count=ATTENTION_BLOCK,
        )
        asm.emit(
            "QACT",
            src=tmem.scores + part.first_row * ATTENTION_BLOCK,
            srs=ATTENTION_BLOCK,
            rows=part.num_rows,
            kb=ATTENTION_BLOCK // BLOCK,
            ab=block,
            cscale=scales,
            use_cscale=1,
        )
        asm.emit(
            "MM",
            sa=Address(Reg.VALUES, part.kv_head * kv.v_head),
            rs=tmem.geometry.v_row_stride_bytes,
            ssa=softmax.alpha + part.first_row,
            n=head_dim,
            kb=ATTENTION_BLOCK // BLOCK,
            m=part.num_rows,
            ab=block,
            out=tmem.accumulator + part.first_row * head_dim,
            ors=head_dim,
            unit=1,
            acc=1,
            ascale=1,
        )
