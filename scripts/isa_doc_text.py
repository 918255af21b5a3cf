"""The hand-written parts of docs/isa.md: what the instruction table cannot say."""

INTRODUCTION = """\
The machine that `npuserve` builds programs for and simulates: the openTPU card as its public instruction set describes
it. This page is made by `scripts/gen_isa_doc.py` from the table in `src/npuserve/isa/spec.py`; the specification in
code is `src/npuserve/sim/reference/`. Where the public text leaves a choice, ours is marked **(ours)**.

Not in this configuration, and an error where it stands: STREAM (0x13). A machine may be without DSTEP too.
"""

MACHINE = """\
One slice has a sequencer with sixteen 32-bit registers (R0 always reads 0), instruction memory, DRAM (bytes, little
endian), TMEM (32-bit words that hold fp32 bits), ACT RAM (int8 rows in blocks of D with one fp32 scale a block), and
the units that work on them: DMA, matrix unit, quantizer, vector unit. Instructions take effect strictly in order.

A run starts at instruction 0 with R0..R7 = 0 and R8..R15 = the run's arguments 0..7. TMEM, ACT RAM and DRAM keep their
contents from run to run. Results do not depend on the sizes below; what fits does.
"""

ENCODING = """\
An instruction is eight 32-bit little-endian words w0..w7. Word 0 holds the opcode [7:0], the register numbers
ra [11:8], rb [15:12], rc [19:16] and rd [23:20], and the flags [31:24]. Bits without a meaning are ignored; write 0.

An address operand is `R[x] + w`, added mod 2^32; register 0 makes it a plain number. Addresses that are built from it
(`base + r*stride + c`, `base + 4i`) do not wrap: one outside the memory is an error. Strides are unsigned. DRAM words
lie at multiples of 4; rows that MM streams, their stride, and a program that HALT chains to lie at multiples of D.
"""

NOTES = {
    "HALT": """\
With CHAIN, `R[count]` instructions (1..IMEM) are loaded from DRAM byte `R[address]`, a multiple of D, and execution
goes on at instruction 0 with the registers as at the start of the run and no active loop. It is one run for the host.
Without CHAIN the registers named are not read. HALT inside a loop halts.""",
    "LOOP": """\
Refused whatever the count: an empty body, a fifth nested level, two bodies that end on the same instruction (put a NOP
behind the inner one), a body that ends on an inner LOOP or inside an inner body **(ours)**. These are judged when LOOP
executes, against the loops that are active **(ours)**. Count 0 goes on behind the body; if that is past the end of the
program, fetching there is the error, as it is for a body that runs out of the program **(ours)**.""",
    "BAR": "On one slice it does nothing.",
    "RLD": """\
First the conversion (RAW or truncation to int32), then MUL. `rd` 0 writes nothing, but the address must be valid.""",
    "WAITW": """\
The condition compares `word & mask` with `ref`, which is not masked; GE is the sign of their 32-bit difference. TMEM
gets the word unmasked. Nobody writes the simulator's DRAM during a run, so a wait that does not hold at once is an
error there; `interval` and `timeout` are ignored.""",
    "LD": "Raw bits. 0 words are legal, do nothing and check nothing.",
    "ST": "Raw bits. 0 words are legal, do nothing and check nothing.",
    "DSTEP": """\
With St the state in DRAM, q(c) = T[qk + c], k(c) = T[qk + cols + c], v(r) = T[v + r], e = T[g], beta = T[g + gs]:

    d(r)     = (v(r) - (St(r) . k) * e) * beta
    St(r, c) = St(r, c) * e + d(r) * k(c)
    T[o + r] = St(r) . q                          of the new state

Every operation is rounded on its own, and a dot product is isum_64 of rounded products: to the bit this is RDOT, MUL,
SUB, MUL, OUTER with DSCALAR, RDOT on a copy of the state. All operands are read before the state is written, and the
state before the result, which may lie over the operands. `g`, `o` and `gs` are plain numbers without a register.

With ZERO the state is not read; it is +0 and goes through the same arithmetic, so that an infinite e gives NaN
**(ours)**. Its place must be inside DRAM all the same **(ours)**. A machine may be without the instruction, and it is
an error there; where it is, bit 6 of CAPS is set.""",
    "MM": """\
With w the block k of streamed row n, for each stationary row j:

    term[k] = (i2f(dot(ACT[j] block ab+k, w)) * ws) * ACT scale[j][ab+k]     ws = M32[ssa + n*srs + 4k], UNIT: 1.0
    acc     = (p0 + p2) + (p1 + p3)                                         pq = +0 + term[q] + term[q+4] + ..
    T[out + j*ors + n] = acc                                                plain
                       = T[out + j*ors + n] + acc                           ACC
                       = T[out + j*ors + n] * T[ssa + j] + acc              ASCALE (needs UNIT and ACC)

RMAX writes the maximum of row j's new values to `T[out + m*ors + j]`. Weights, scales, old values and factors are read
before anything is written. Weight bytes of -128 count as -128; the dot product is exact. `rs` 0 repeats a row.
Limits: n, kb >= 1; m 1..ACT_ROWS, with RMAX or ASCALE 1..MCOLS; ab + kb <= ACT_BLOCKS. `srs` matters from the second
row on, so with n = 1 it need not be a multiple of 4 **(ours)**.

**4-bit weights** (wf 1 to 3). Block k of row n is the D/2 bytes at `sa + n*rs + k*D/2`; element i is in byte i/2, in
the low half when i is even. Rows are read in whole chunks of D bytes, so an odd kb leaves half a chunk unused. A code
means:

| wf | format | codes 0, 1, .. 15 |
| --- | --- | --- |
| 1 | int4 | 0 1 2 3 4 5 6 7 -8 -7 -6 -5 -4 -3 -2 -1 |
| 2 | fp4 (E2M1, twice its value) | 0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12 |
| 3 | nvfp4 (E2M1, twice its value) | the same |

For wf 1 and 2 the scale word of a block holds ws as bf16 in bits 15:0 and a multiplier, unsigned, for each quarter of
the block in the four bits from 16, 20, 24 and 28 on; the dot product is the sum of the quarters' dot products times
their multipliers, exact. UNIT takes 1.0 and multipliers of 1. Any bf16 pattern is legal, and so is a multiplier of 0.

**nvfp4** (wf 3) is an extension **(ours)**; a card has it only if its capability says so (below). A row of scales is
two words for each block, whose eight bytes are the E4M3 scales of the eighths of the block from the first on, and
behind those of the last block one fp32 word, the row's scale. `ssa` and `srs` are multiples of 8. With UNIT all are
1.0.

    term[k] = (..((t0 + t1) + t2) + .. t7) * ACT scale[j][ab+k]     tb = i2f(dot of eighth b) * its scale, exact
    acc     = ((p0 + p2) + (p1 + p3)) * scale of row n

E4M3 has a sign, four exponent bits with bias 7 and three fraction bits; 7F and FF are NaN, exponent 0 is denormal and
counts. A tensor's scale is written into each of its rows, so that tensors with different ones may lie in one matrix.

**PAIR** (wf 1 to 3) takes the odd blocks from other rows of the ACT RAM, which QACT DUP fills: row j holds the even
blocks and row m + j the odd ones, each at its own place. Two neighbouring terms are added first, and isum_4 takes the
sums `term[2c] + term[2c+1]`, of which the last has +0 for a block that is not there. So with PAIR the last bits differ
from those without. 2*m must be within MCOLS and ACT_ROWS. Without UNIT `ssa` and `srs` are multiples of 8 (two scale
words are read at once, and the one that pads an odd row is ignored).

The capability is bit 0 of the register EXTENSIONS at 0x05C **(ours)**, whose upper half is 4E50 where it exists: bits
28 and 29 of CAPS are reserved and may read as anything. 4-bit weights are bit 4 of CAPS, PAIR is bit 5.""",
    "QACT": """\
x is multiplied by the row factor, then by the column factor, each product rounded; then each block (ROW: each row) is
quantized as below. ROW stores the row's scale in all of its blocks. DUP writes row r again as row r + rows and needs
2*rows <= MCOLS. What is not named stays. rows 1..ACT_ROWS, kb >= 1, ab + kb <= ACT_BLOCKS. `cscale` and `rscale` are
plain addresses.""",
    "QST": """\
Element c of row r goes to byte `dst + r*drs + c*es`; `es` > 1 appends a token as a column. Scales go to
`sdst + 4*(r*kb + k)`, with ROW to `sdst + 4*r`. HALF (needs ROW) takes the scale of the whole row and writes the
elements c < kb*D/2. A scale word on bytes that are written is an error; between the bytes of a column it is legal.""",
    "VOP": """\
A(r,c) = T[a + r*ars + c]. B(r,c) by `bmode`: 0 T[b + r*brs + c], 1 T[b + r*brs], 2 T[b + c], 3 the immediate.
Results go to T[dst + r*drs + c], those of reductions to T[dst + r*drs].

{functions}

**OUTER** works in place on S = T[dst + r*drs + c] with bmode 1 and at most 256 columns: C(c) = T[imm + c], the decay is
T[a + c], with DSCALAR T[a], with DONE (which wins) 1.0 and `a` unread. C and the decay are read before any write.
**ARGMAX** writes the maximum to T[dst + r*drs] and the first column that equals it (flushed bits), plus the signed
immediate (mod 2^32, **ours**), as fp32 to the word behind; more than one row needs drs >= 2.
Other functions ignore the flags, and an operand that a function does not use is not read and may lie anywhere.

**Hazards.** Number the elements row by row, p = r*cols + c. Element p is written at p, a reduction at its row's last
p. To read A, B or (OUTER) S at p from a word that an earlier p wrote is an error. So dst = a with equal strides,
shifting down, and reductions onto rows already read are legal; dst = a + 1, or an operand that is overwritten before
its last use, is not.""",
    "GATHER": """\
On one slice it copies inside that slice and `seg` does not matter. Raw bits. Source and destination must not overlap,
judged by the words read and written **(ours)**; rows and columns are 1 or more.""",
}

ARITHMETIC = """\
* fp32, round to nearest even, no fused operations. Denormals count as zero of their sign, as inputs and as results; a
  result is denormal if it is so **after** rounding on the subnormal grid, so a product that rounds up to 2^-126 stays.
* NaN results are 7FC00000. add and mul of NaN give it; flush, max, min, COPY and FILL keep a NaN's bits; abs clears its
  sign; exp2(NaN) = +inf; recip(NaN) = zero of its sign; rsqrt(NaN) = +0 with the sign bit set, else canonical;
  log2(NaN) = canonical; q8(NaN) = 0.
* max and min use the total order of the flushed bits, -NaN < -inf < .. < -0 < +0 < .. < +inf < NaN, payloads ordered
  too; max(a,b) = a if a > b else b.
* f2i truncates; magnitudes from 2^31 on, infinities and NaN give 80000000. i2f rounds to nearest even. q8 rounds half
  to even and clamps to -127..127.
* isum_P: partial q starts at +0 and adds elements q, q+P, .. in order; then p[i] += p[i+n] for n = P/2 .. 1. MM uses
  P = 4 without padding; RSUM, RSSQ and RDOT P = 64, the row padded with explicit +0 addends to a multiple of 64.
* Quantization of a group: amax is the largest magnitude as an unsigned integer (a NaN wins); scale = amax * f32(1/127)
  (3C010204), q = q8(x * (127 * recip(amax))). So NaN and infinite groups and amax >= 2^126 give zeros, and a tiny amax
  +-127 with a scale that may flush to 0.
* exp2: i = floor(x), f = x - i, a polynomial in f by Horner's rule, i added to the exponent. +0 below -126, +inf from
  128 on. Coefficients from the constant term on:
  {exp2}.
* recip: +-0 gives +0; |x| >= 2^126 zero of its sign. On the significand a in [1,2): y = bits(7EF311C3 - bits(a)), twice
  y = y*(2 - a*y), then y = y*(1 - a*y) + y; the exponent is put back.
* rsqrt: sign bit set, 0 and +inf give +0. Exponent fields <= 2 are scaled by 16, >= 250 by 1/16. y = bits(5F3759DF -
  (bits(x) >> 1)), h = x/2, twice y = y*(1.5 - h*(y*y)), then y = y*(0.5 - h*(y*y)) + y.
* log2: +-0 gives -inf, x < 0 the canonical NaN. The significand is taken to [sqrt(1/2), sqrt(2)) (limit fraction
  3504F3), t = m - 1, a polynomial in t without constant term, plus the exponent. Coefficients from t^1 on:
  {log2}.
"""

ERRORS = """\
An error stops the run. What earlier instructions wrote stays; the failing one may have written a part. Errors are: an
opcode or vector function that does not exist or is not in this configuration; the end of the program; an address
outside its memory or not aligned; a size of 0 (except in LD and ST, **ours**) or beyond its limit; badly nested loops;
a wait that does not hold; a hazard; a forbidden overlap; and what the instructions above name. Addresses are judged by
the words and bytes that are really read or written **(ours)**.

Where rows of a result overlap, the last writer in row-major order wins. Every execution counts as a retired
instruction, LOOP and HALT included.
"""
