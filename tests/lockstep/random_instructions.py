"""One random instruction of each kind, legal in most cases; what is not is the machines' business to refuse alike."""

from collections.abc import Callable

from lockstep.random_operands import Placer
from npuserve.isa.fields import Address, Value
from npuserve.isa.spec import BMode, VectorFunction, encode

COLUMNS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 130, 200, 256, 300)
REDUCTIONS = range(VectorFunction.RSUM, VectorFunction.ARGMAX + 1)
SCRATCH_REGISTERS = (5, 6, 7)


def vop(place: Placer) -> list[int]:
    function = place.pick(*VectorFunction)
    cols = place.pick(*COLUMNS)
    rows = place.pick(1, 1, 2, 3, 4, 5, place.number(1, 12))
    bmode = BMode.PER_ROW if function == VectorFunction.OUTER and place.chance(0.95) else place.number(0, 3)
    per_row = 2 if function == VectorFunction.ARGMAX else 1 if function in REDUCTIONS else cols
    drs = _stride(place, per_row)
    ars, brs = _stride(place, cols), place.pick(0, 1, 1, 3, cols, cols + 5)
    dst, target = place.tmem((rows - 1) * drs + cols + 2)
    a, _ = place.tmem((rows - 1) * ars + cols)
    b, _ = place.tmem((rows - 1) * brs + cols)
    if place.chance(0.35):
        a = place.near(target + place.pick(0, 0, 0, -1, 1, -cols, cols, place.number(-300, 300)))
        ars = drs if place.chance(0.7) else ars
    if place.chance(0.25):
        b = place.near(target + place.pick(0, 0, -1, 1, cols, place.number(-300, 300)))
        brs = drs if place.chance(0.5) else brs
    operands: dict[str, Value] = {"dst": dst, "a": a, "b": b, "rows": rows, "cols": cols, "drs": drs, "ars": ars}
    operands |= {"brs": brs, "func": function, "bmode": int(bmode), "imm": _vop_immediate(place, function)}
    return encode("VOP", **operands, dscalar=place.number(0, 1), done=place.pick(0, 0, 1))


def _vop_immediate(place: Placer, function: int) -> Value:
    if function == VectorFunction.OUTER:
        return place.tmem(256)[0]
    if function == VectorFunction.ARGMAX:
        return Address(0, place.pick(0, 5, 0xFFFF_FFF0, 0x7FFF_FFFF, 1 << 24))
    bits = (0x3F800000, 0xBF000000, 0, 0x80000000, 0x00000001, 0x7F800000, 0xFFC00001, 0x42000000, 0x1F800000)
    return Address(place.pick(0, 0, 0, 9), place.pick(*bits))


def _stride(place: Placer, width: int) -> int:
    return place.pick(width, width, width, width + 1, width + 3, 2 * width, 0, max(width - 1, 0))


def qact(place: Placer) -> list[int]:
    config = place.config
    dup = int(place.chance(0.15))
    rows = place.number(1, max(1, min(config.act_rows, config.mcols // 2 if dup else 16)))
    kb = place.pick(1, 1, 2, 3, 5, 8)
    width = kb * config.depth
    srs = place.pick(width, width + 4, config.depth, 0, 1)
    src, _ = place.tmem((rows - 1) * srs + width)
    flags = {name: place.number(0, 1) for name in ("row_scale", "use_cscale", "use_rscale")}
    factors = {"cscale": place.tmem(width)[1], "rscale": place.tmem(rows)[1]}
    ab = place.number(0, min(config.act_blocks - kb, 12))
    return encode("QACT", src=src, rows=rows, ab=ab, kb=kb, srs=srs, dup=dup, **factors, **flags)


def qst(place: Placer) -> list[int]:
    rows, kb = place.pick(1, 1, 2, 3, 4), place.pick(1, 1, 2, 3)
    width = kb * place.config.depth
    srs, es = place.pick(width, width + 1, 0, 7), place.pick(1, 1, 1, 2, 64, 0, 3)
    drs = place.pick(width * max(es, 1), 1, place.config.depth, 2 * width, 0)
    src, _ = place.tmem((rows - 1) * srs + width)
    dst, target = place.dram((rows - 1) * drs + (width - 1) * es + 1)
    sdst, _ = place.dram(4 * rows * kb, align=4)
    if place.chance(0.15):
        sdst = place.dram_at((target + place.number(-8, 8) * 4) // 4 * 4 % place.dram_limit, 4)
    row_scale = place.number(0, 1)
    half = row_scale * place.number(0, 1)
    operands: dict[str, Value] = {"src": src, "dst": dst, "sdst": sdst, "rows": rows, "kb": kb}
    return encode("QST", **operands, srs=srs, drs=drs, es=es, row_scale=row_scale, half=half)


def dstep(place: Placer) -> list[int]:
    rows, cols = place.pick(1, 2, 31, 32, 33, 64, place.number(1, 256)), place.pick(64, 128, 192, 256)
    state, _ = place.dram(4 * rows * cols, align=place.config.depth)
    qk, first = place.tmem(2 * cols)
    v, _ = place.tmem(rows)
    _, target = place.tmem(rows)
    if place.chance(0.2):
        target = min(max(first + place.number(-300, 600), 0), place.config.tmem_words - rows)
    g, gs = place.number(place.window, place.window + 200), place.pick(0, 1, 1, 16, 64)
    operands: dict[str, Value] = {"state": state, "qk": qk, "v": v, "rows": rows, "cols": cols}
    return encode("DSTEP", **operands, g=g, gs=gs, o=target, zero=int(place.chance(0.15)))


def ld(place: Placer) -> list[int]:
    count = _count(place)
    return encode("LD", src=place.dram(4 * count, align=4)[0], dst=place.tmem(count)[0], count=count)


def st(place: Placer) -> list[int]:
    count = _count(place)
    return encode("ST", src=place.tmem(count)[0], dst=place.dram(4 * count, align=4)[0], count=count)


def _count(place: Placer) -> int:
    return place.pick(0, 1, 2, 31, 128, place.number(1, 700), place.number(1, 4000))


def gather(place: Placer) -> list[int]:
    rows, cols = place.number(1, 5), place.pick(*COLUMNS)
    srs, drs = _stride(place, cols), _stride(place, cols)
    src, start = place.tmem((rows - 1) * srs + cols)
    dst, _ = place.tmem((rows - 1) * drs + cols)
    if place.chance(0.2):
        dst = place.near(start + place.pick(cols, -cols, place.number(-400, 400)))
    return encode("GATHER", src=src, dst=dst, rows=rows, cols=cols, srs=srs, drs=drs, seg=place.number(0, 99))


def rld(place: Placer) -> list[int]:
    operands: dict[str, Value] = {"rd": place.pick(0, *SCRATCH_REGISTERS), "src": place.tmem(1)[0]}
    operands["factor"] = Address(place.number(0, 15), place.pick(0, 3, 0xFFFF_FFFF))
    return encode("RLD", **operands, raw=place.number(0, 1), mul=place.number(0, 1))


def waitw(place: Placer) -> list[int]:
    operands: dict[str, Value] = {"src": place.dram(4, align=4)[0], "dst": place.tmem(1)[0]}
    operands |= {"mask": place.pick(0, 0, 1, 0xFFFF_FFFF), "interval": 9, "timeout": 9}
    return encode("WAITW", **operands, ref=Address(0, place.pick(0, 0, 1)), compare=place.pick(0, 1, 2, 2))


def register_arithmetic(place: Placer) -> list[int]:
    register = place.pick(0, *SCRATCH_REGISTERS)
    value = place.pick(0, 1, 100, 0xFFFF_FFFF, 0x8000_0000)
    if place.chance(0.5):
        return encode("LI", rd=register, value=value)
    return encode("ADDI", rd=register, ra=place.number(0, 15), value=value)


def nothing(place: Placer) -> list[int]:
    return encode("NOP" if place.chance(0.5) else "BAR")


Draw = Callable[[Placer], list[int]]
SHARES: dict[Draw, float] = {
    vop: 0.42,
    dstep: 0.03,
    qact: 0.14,
    qst: 0.09,
    ld: 0.08,
    st: 0.06,
    gather: 0.05,
    rld: 0.04,
    waitw: 0.02,
    register_arithmetic: 0.05,
    nothing: 0.02,
}
