"""RMS norm into the activation memory, and matrix products out of it."""

from npuserve.isa.fields import Address
from npuserve.isa.spec import BMode, VectorFunction
from npuserve.program.assembler import Assembler
from npuserve.program.dram import Matrix
from npuserve.program.geometry import BLOCK


def rms_norm(
    asm: Assembler,
    *,
    source: int,
    stride: int,
    rows: int,
    size: int,
    columns: int,
    weight: int,
    statistics: int,
    eps: float,
    paired: bool = False,
) -> None:
    """Quantize x * rsqrt(mean(x^2) + eps) * weight into ACT blocks from 0; `columns` is `size` in whole blocks.

    `paired` says that the matrix to come is.
    """
    _inverse_norms(asm, source=source, stride=stride, rows=rows, size=size, statistics=statistics, eps=eps)
    asm.emit(
        "QACT",
        src=source,
        srs=stride,
        rows=rows,
        kb=columns // BLOCK,
        rscale=statistics,
        use_rscale=1,
        cscale=weight,
        use_cscale=1,
        dup=int(paired),
    )


def _inverse_norms(
    asm: Assembler, *, source: int, stride: int, rows: int, size: int, statistics: int, eps: float
) -> None:
    """statistics[row] = rsqrt(mean(x^2) + eps)."""
    asm.vop(VectorFunction.RSSQ, statistics, source, rows=rows, cols=size, strides=(1, stride, 0))
    asm.vop(VectorFunction.MUL, statistics, statistics, 1.0 / size, cols=rows)
    asm.vop(VectorFunction.ADD, statistics, statistics, eps, cols=rows)
    asm.vop(VectorFunction.RSQRT, statistics, statistics, cols=rows)


def norm_rows(
    asm: Assembler, *, source: int, stride: int, rows: int, size: int, weight: int, statistics: int, eps: float
) -> None:
    """x * rsqrt(mean(x^2) + eps) * weight in place; the product with the weight is rounded last."""
    _inverse_norms(asm, source=source, stride=stride, rows=rows, size=size, statistics=statistics, eps=eps)
    for factor, step, mode in ((statistics, 1, BMode.PER_ROW), (weight, 0, BMode.PER_COLUMN)):
        asm.vop(
            VectorFunction.MUL, source, source, factor, rows=rows, cols=size, strides=(stride, stride, step), mode=mode
        )


def quantize(asm: Assembler, *, source: int, stride: int, rows: int, columns: int, paired: bool = False) -> None:
    """Quantize rows of whole blocks into ACT blocks from 0; `paired` says that the matrix to come is."""
    asm.emit("QACT", src=source, srs=stride, rows=rows, kb=columns // BLOCK, dup=int(paired))


def linear(
    asm: Assembler,
    matrix: Matrix,
    base: int,
    *,
    out: int,
    stride: int,
    rows: int,
    accumulate: bool = False,
) -> None:
    """out[row] = (out[row] +) matrix @ ACT[row]; `base` is the register that the matrix's offsets count from."""
    asm.emit(
        "MM",
        sa=Address(base, matrix.weights),
        ssa=Address(base, matrix.scales),
        out=out,
        n=matrix.n,
        kb=matrix.blocks,
        rs=matrix.row_stride,
        srs=matrix.scale_stride,
        ors=stride,
        m=rows,
        acc=int(accumulate),
        wf=matrix.format.wf,
        pair=int(matrix.paired),
    )
