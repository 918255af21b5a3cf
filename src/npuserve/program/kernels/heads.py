"""From the qkv product to padded heads: biases, norms of q and k, rotation, and the copy of v."""

from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.kernels.grid import Grid, sweeps
from npuserve.program.tmem import TmemLayout


def add_bias(asm: Assembler, *, out: int, stride: int, rows: int, size: int, bias: int) -> None:
    """out[row] += bias."""
    asm.vop(
        VectorFunction.ADD,
        out,
        out,
        bias,
        rows=rows,
        cols=size,
        strides=(stride, stride, 0),
        mode=BMode.PER_COLUMN,
    )


def norm_heads(
    asm: Assembler, tmem: TmemLayout, *, part: int, num_heads: int, size: int, weight: int | None, eps: float
) -> None:
    """RMS norm in place of heads of `size` that stand side by side in a part of the rows, with weights if any."""
    rows = tmem.shape.rows
    heads = Grid(tmem.rows + part, tmem.row_stride, size)
    sum_squares(asm, tmem, heads=heads, num_heads=num_heads, size=size)
    count = rows * num_heads
    asm.vop(VectorFunction.MUL, tmem.statistics, tmem.statistics, 1.0 / size, cols=count)
    asm.vop(VectorFunction.ADD, tmem.statistics, tmem.statistics, eps, cols=count)
    asm.vop(VectorFunction.RSQRT, tmem.statistics, tmem.statistics, cols=count)
    scale_heads(asm, tmem, heads=heads, num_heads=num_heads, size=size)
    if weight is None:
        return
    for sweep in sweeps(rows, num_heads):
        start, stride = heads.start(sweep), heads.stride(sweep)
        asm.vop(
            VectorFunction.MUL,
            start,
            start,
            weight,
            rows=sweep.length,
            cols=size,
            strides=(stride, stride, 0),
            mode=BMode.PER_COLUMN,
        )


def sum_squares(asm: Assembler, tmem: TmemLayout, *, heads: Grid, num_heads: int, size: int) -> None:
    """statistics[row][head] = sum of the head's squares."""
    statistics = Grid(tmem.statistics, num_heads, 1)
    for sweep in sweeps(tmem.shape.rows, num_heads):
        strides = (statistics.stride(sweep), heads.stride(sweep), 0)
        asm.vop(
            VectorFunction.RSSQ,
            statistics.start(sweep),
            heads.start(sweep),
            rows=sweep.length,
            cols=size,
            strides=strides,
        )


def scale_heads(asm: Assembler, tmem: TmemLayout, *, heads: Grid, num_heads: int, size: int) -> None:
    """Each head times its statistic, in place."""
    statistics = Grid(tmem.statistics, num_heads, 1)
    for sweep in sweeps(tmem.shape.rows, num_heads):
        start, stride = heads.start(sweep), heads.stride(sweep)
        asm.vop(
            VectorFunction.MUL,
            start,
            start,
            statistics.start(sweep),
            rows=sweep.length,
            cols=size,
            strides=(stride, stride, statistics.stride(sweep)),
            mode=BMode.PER_ROW,
        )


def rotate_heads(asm: Assembler, tmem: TmemLayout) -> None:
    """Rotate q and k heads by their row's angles, from the qkv product into the padded heads.

    out = x * [cos, cos] + swap(x) * [-sin, sin], where swap exchanges the two halves of the dimensions that rotate;
    the host writes cosines and sines doubled and signed that way. The other dimensions are copied.
    """
    geometry, rows, stride = tmem.geometry, tmem.shape.rows, tmem.row_stride
    size, rotary, half = geometry.facts.head_dim, geometry.facts.rotary_dim, geometry.facts.rotary_dim // 2
    if rotary < size:
        _copy(asm, tmem, tmem.qkv + rotary, tmem.qk_heads + rotary, geometry.num_qk_heads, size - rotary)
    if not rotary:
        return
    source = Grid(tmem.rows + tmem.qkv, stride, size)
    target = Grid(tmem.rows + tmem.qk_heads, stride, geometry.head)
    cosines = Grid(tmem.rows + tmem.cosines, stride, 0)
    sines = Grid(tmem.rows + tmem.sines, stride, 0)
    for sweep in sweeps(rows, geometry.num_qk_heads):

        def multiply(out: Grid, a: Grid, b: Grid, columns: int) -> None:
            asm.vop(
                VectorFunction.MUL,
                out.start(sweep),  # noqa: B023 - called before the sweep changes
                a.start(sweep),  # noqa: B023
                b.start(sweep),  # noqa: B023
                rows=sweep.length,  # noqa: B023
                cols=columns,
                strides=(out.stride(sweep), a.stride(sweep), b.stride(sweep)),  # noqa: B023
            )

        multiply(target, source.shifted(half), sines, half)
        multiply(target.shifted(half), source, sines.shifted(half), half)
        multiply(source, source, cosines, rotary)
        asm.vop(
            VectorFunction.ADD,
            target.start(sweep),
            source.start(sweep),
            target.start(sweep),
            rows=sweep.length,
            cols=rotary,
            strides=(target.stride(sweep), source.stride(sweep), target.stride(sweep)),
        )


def copy_values(asm: Assembler, tmem: TmemLayout) -> None:
    """v heads from the qkv product into their padded places."""
    facts = tmem.geometry.facts
    values = tmem.qkv + tmem.geometry.num_qk_heads * facts.head_dim
    _copy(asm, tmem, values, tmem.v_heads, tmem.geometry.num_own_kv_heads, facts.head_dim)


def _copy(asm: Assembler, tmem: TmemLayout, part: int, padded: int, num_heads: int, columns: int) -> None:
    """`columns` words of each head of a row from where heads stand packed to where they are padded."""
    source = Grid(tmem.rows + part, tmem.row_stride, tmem.geometry.facts.head_dim)
    target = Grid(tmem.rows + padded, tmem.row_stride, tmem.geometry.head)
    for sweep in sweeps(tmem.shape.rows, num_heads):
        asm.vop(
            VectorFunction.COPY,
            target.start(sweep),
            source.start(sweep),
            rows=sweep.length,
            cols=columns,
            strides=(target.stride(sweep), source.stride(sweep), 0),
        )
