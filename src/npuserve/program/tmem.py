"""Where everything stands in TMEM while a step runs.

    0            segment words of the current layer, [segments][16]
                 vectors of the current layer (or the final norm)
                 statistics: one word per row and head, and the running values of a softmax tile
                 scores of one attention tile (the activation's scratch uses the same words)
    rows         one record per row of the step, `row_stride` words apart:
                     hidden state | cosines | sines | mask          written by the host
                     qkv, later gate and up
                     q and k heads | v heads | attention | mlp      padded with zeros
    logits       over the row records, which are finished by then

A uniform row stride means that one register reaches every part of a row. Offsets and sizes are words.
"""

from dataclasses import dataclass
from functools import cached_property

from npuserve.errors import ProgramError
from npuserve.isa.machine import MachineConfig
from npuserve.program.dram import WORDS_PER_SEGMENT, LayerLayout
from npuserve.program.geometry import ATTENTION_BLOCK, Geometry, round_up

MAX_STRIDE = 0xFFFF
CACHE_LINE = 16
LOGITS_CHUNK = 8192
ACTIVATION_SCRATCH = 16_384


@dataclass(frozen=True, slots=True)
class Shape:
    """What distinguishes programs: rows of the one prompt segment, decode rows behind them, and how many of the
    last rows want logits."""

    prefill_rows: int
    decode_rows: int
    logit_rows: int

    @property
    def rows(self) -> int:
        return self.prefill_rows + self.decode_rows

    @property
    def segments(self) -> int:
        return (1 if self.prefill_rows else 0) + self.decode_rows

    @property
    def mask_blocks(self) -> int:
        """A prompt segment may reach into two partly visible attention blocks, a decode row into one."""
        return 2 if self.prefill_rows else 1


@dataclass(frozen=True)
class TmemLayout:
    """Word addresses for one shape; ProgramError when they do not fit the machine."""

    geometry: Geometry
    shape: Shape
    machine: MachineConfig

    def __post_init__(self) -> None:
        if self.row_stride > MAX_STRIDE:
            raise ProgramError(f"a row needs {self.row_stride} words, but strides hold {MAX_STRIDE}")
        if self.end > self.machine.tmem_words:
            raise ProgramError(
                f"{self.shape.rows} rows need {self.end} words, but TMEM of {self.machine.name}"
                f" has {self.machine.tmem_words}"
            )

    # ---- before the rows

    @property
    def segments(self) -> int:
        return 0

    @property
    def vectors(self) -> int:
        return round_up(self.shape.segments * WORDS_PER_SEGMENT, CACHE_LINE)

    @property
    def statistics(self) -> int:
        """One word per row and head, contiguous."""
        return round_up(self.vectors + LayerLayout(self.geometry).vectors.size, CACHE_LINE)

    @property
    def tile_rows(self) -> int:
        """Rows of an attention tile: a decode row's heads, or a prompt segment's rows."""
        heads = self.geometry.facts.num_heads if self.shape.decode_rows else 0
        return max(heads, self.shape.prefill_rows)

    @cached_property
    def softmax(self) -> int:
        """Five vectors of tile_rows words: running maximum, block maximum, alpha, running sum, block sum."""
        return round_up(self.statistics + self.shape.rows * self.geometry.num_qk_heads, CACHE_LINE)

    @property
    def softmax_stride(self) -> int:
        return round_up(self.tile_rows, CACHE_LINE)

    @cached_property
    def accumulator(self) -> int:
        return self.softmax + 5 * self.softmax_stride

    @cached_property
    def value_scales(self) -> int:
        return round_up(self.accumulator + self.tile_rows * self.geometry.facts.head_dim, CACHE_LINE)

    @cached_property
    def scores(self) -> int:
        return self.value_scales + self.geometry.facts.num_kv_heads * ATTENTION_BLOCK

    @property
    def activation_rows(self) -> int:
        """Rows that SwiGLU takes at once: as many as keep its scratch in the cache."""
        return max(1, min(self.shape.rows, ACTIVATION_SCRATCH // self.geometry.facts.intermediate_size))

    @cached_property
    def rows(self) -> int:
        scratch = max(self.tile_rows * ATTENTION_BLOCK, self.activation_rows * self.geometry.facts.intermediate_size)
        return round_up(self.scores + scratch, CACHE_LINE)

    # ---- parts of a row record, from its start

    hidden = 0

    @property
    def cosines(self) -> int:
        return self.geometry.hidden

    @property
    def sines(self) -> int:
        return self.cosines + self.geometry.facts.head_dim

    @property
    def mask(self) -> int:
        return self.sines + self.geometry.facts.head_dim

    @property
    def record_words(self) -> int:
        """The part the host writes."""
        return self.mask + self.shape.mask_blocks * ATTENTION_BLOCK

    @property
    def qkv(self) -> int:
        return round_up(self.record_words, CACHE_LINE)

    @property
    def gate_up(self) -> int:
        return self.qkv

    @cached_property
    def qk_heads(self) -> int:
        wide = max(self.geometry.qkv, 2 * self.geometry.facts.intermediate_size)
        return round_up(self.qkv + wide, CACHE_LINE)

    @property
    def v_heads(self) -> int:
        return self.qk_heads + self.geometry.num_qk_heads * self.geometry.head

    @property
    def attention(self) -> int:
        return self.v_heads + self.geometry.facts.num_kv_heads * self.geometry.head

    @property
    def mlp(self) -> int:
        """Input of the down projection: the gate's own words where it fills whole blocks."""
        if self.geometry.mlp == self.geometry.facts.intermediate_size:
            return self.gate_up
        return self.attention + self.geometry.attention

    @cached_property
    def row_stride(self) -> int:
        end = self.attention + self.geometry.attention
        if self.mlp != self.gate_up:
            end += self.geometry.mlp
        return end + CACHE_LINE

    # ---- after the layers

    @property
    def logits(self) -> int:
        return self.rows

    @cached_property
    def logits_chunk(self) -> int:
        """Head rows per MM: as many as leave room for every row that wants logits."""
        if not self.shape.logit_rows:
            return 0
        room = (self.machine.tmem_words - self.logits) // self.shape.logit_rows
        return min(LOGITS_CHUNK, room // CACHE_LINE * CACHE_LINE)

    @cached_property
    def end(self) -> int:
        return self.rows + self.shape.rows * self.row_stride


def most_rows(geometry: Geometry, machine: MachineConfig) -> int:
    """The most rows a step can have on a machine, whatever their kinds; ProgramError when not even one fits."""
    limit = min(machine.act_rows, machine.mcols)
    for rows in range(limit, 0, -1):
        try:
            for prefill_rows in range(rows + 1):
                TmemLayout(geometry, Shape(prefill_rows, rows - prefill_rows, rows), machine)
            return rows
        except ProgramError:
            if rows == 1:
                raise
    raise ProgramError(f"the {machine.name} machine has no rows")
