"""Where everything stands in TMEM while a step runs.

    0            directory entry of the current layer
                 segment words of the current layer, [segments][16]
                 vectors of the current layer (or the final norm)
                 the layer's own inputs, [rows][input_size]
                 statistics: one word per row and head, and the running values of a softmax tile
                 scores of one attention tile (the activation's scratch and a convolution's window use the same words)
    rows         one record per row of the step, `row_stride` words apart:
                     hidden state | cosines | sines | masks         written by the host
                     copy of the embedding, where layers have inputs of their own
                     qkv, later gate and up, results that are normed before they are added
                     q and k heads | v heads | attention | mlp      padded with zeros
    logits       over the row records, which are finished by then

A uniform row stride means that one register reaches every part of a row. Parts have the same place in every kind of
layer, with room for the largest. Offsets and sizes are words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from npuserve.errors import ProgramError
from npuserve.isa.machine import MachineConfig
from npuserve.program.dram import DIRECTORY_WORDS, WORDS_PER_SEGMENT, LayerLayout
from npuserve.program.geometry import ATTENTION_BLOCK, BLOCK, Geometry, LayerGeometry, round_up, same_rotation

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
    def segment_rows(self) -> tuple[range, ...]:
        """The rows of each segment."""
        decode = (range(row, row + 1) for row in range(self.prefill_rows, self.rows))
        return (range(self.prefill_rows), *decode) if self.prefill_rows else tuple(decode)

    @property
    def mask_blocks(self) -> int:
        """A prompt segment may reach into two partly visible attention blocks, a decode row into one."""
        return 2 if self.prefill_rows else 1


@dataclass(frozen=True)
class TmemLayout:
    """Word addresses for one shape, as one kind of layer sees them; ProgramError when they do not fit the machine.

    Made with a model's geometry it is the view of the usual layer; `of` gives those of the other kinds.
    """

    geometry: LayerGeometry
    shape: Shape
    machine: MachineConfig
    whole: Geometry | None = None

    def __post_init__(self) -> None:
        if self.row_stride > MAX_STRIDE:
            raise ProgramError(f"a row needs {self.row_stride} words, but strides hold {MAX_STRIDE}")
        if self.end > self.machine.tmem_words:
            raise ProgramError(
                f"{self.shape.rows} rows need {self.end} words, but TMEM of {self.machine.name}"
                f" has {self.machine.tmem_words}"
            )
        widest = max(self._most(lambda kind: kind.mlp), self._most(lambda kind: kind.attention)) // BLOCK
        if widest > self.machine.act_blocks:
            raise ProgramError(
                f"a projection reads {widest} blocks of {BLOCK}, but ACT rows of {self.machine.name}"
                f" have {self.machine.act_blocks}"
            )

    @cached_property
    def model(self) -> Geometry:
        """The model's geometry."""
        if self.whole is not None:
            return self.whole
        assert isinstance(self.geometry, Geometry), "a view of one kind is made with `of`"
        return self.geometry

    def of(self, kind: int) -> "TmemLayout":
        """The same places, as layers of a kind see them."""
        return replace(self, geometry=self.model.kinds[kind], whole=self.model)

    def _most(self, size: Callable[[LayerGeometry], int]) -> int:
        """The largest of a size among the kinds."""
        return max(size(geometry) for geometry in self._kinds)

    @cached_property
    def _kinds(self) -> tuple[LayerGeometry, ...]:
        return self.model.kinds

    # ---- before the rows

    @property
    def directory(self) -> int:
        return 0

    @property
    def segments(self) -> int:
        return DIRECTORY_WORDS if len(self._kinds) > 1 else 0

    @property
    def vectors(self) -> int:
        return round_up(self.segments + self.shape.segments * WORDS_PER_SEGMENT, CACHE_LINE)

    @cached_property
    def inputs(self) -> int:
        size = self._most(lambda geometry: LayerLayout(geometry).vectors.size)
        return round_up(self.vectors + size, CACHE_LINE)

    @cached_property
    def statistics(self) -> int:
        """One word per row and head, contiguous; at least one per row."""
        size = self._most(lambda geometry: geometry.facts.input_size)
        return round_up(self.inputs + self.shape.rows * size, CACHE_LINE)

    @property
    def tile_rows(self) -> int:
        """Rows of an attention tile: a decode row's heads, or a prompt segment's rows."""
        heads = self._most(lambda geometry: geometry.facts.num_heads) if self.shape.decode_rows else 0
        return max(heads, self.shape.prefill_rows)

    @cached_property
    def softmax(self) -> int:
        """Five vectors of tile_rows words: running maximum, block maximum, alpha, running sum, block sum."""
        heads = self._most(_num_normed_heads)
        return round_up(self.statistics + self.shape.rows * heads, CACHE_LINE)

    @property
    def softmax_stride(self) -> int:
        return round_up(self.tile_rows, CACHE_LINE)

    @cached_property
    def accumulator(self) -> int:
        return self.softmax + 5 * self.softmax_stride

    def _window(self, geometry: LayerGeometry) -> int:
        """A convolution's inputs, its state and those of the longest segment; a head's state and a vector; gates."""
        segment, facts = max(self.shape.prefill_rows, 1), geometry.facts
        if not facts.conv_taps:
            return 0
        window = geometry.conv_state + segment * facts.conv_channels
        if not facts.delta:
            return window
        gates = self.shape.rows * facts.delta.num_value_heads
        return max(window, geometry.head_state + facts.delta.value_dim, gates)

    @cached_property
    def value_scales(self) -> int:
        size = self._most(lambda geometry: geometry.facts.head_dim)
        return round_up(self.accumulator + self.tile_rows * size, CACHE_LINE)

    @cached_property
    def scores(self) -> int:
        heads = self._most(lambda geometry: geometry.facts.num_kv_heads)
        return self.value_scales + heads * ATTENTION_BLOCK

    @property
    def activation_rows(self) -> int:
        """Rows that SwiGLU takes at once: as many as keep its scratch in the cache."""
        return self._activation_rows(self.geometry)

    def _activation_rows(self, geometry: LayerGeometry) -> int:
        return max(1, min(self.shape.rows, ACTIVATION_SCRATCH // geometry.facts.intermediate_size))

    def _activation_scratch(self, geometry: LayerGeometry) -> int:
        facts = geometry.facts
        gates = (facts.conv_channels, facts.delta.values) if facts.delta else ()
        return self._activation_rows(geometry) * max(facts.intermediate_size, facts.input_size, *gates)

    @cached_property
    def rows(self) -> int:
        scratch = max(self.tile_rows * ATTENTION_BLOCK, self._most(self._activation_scratch), self._most(self._window))
        return round_up(self.scores + scratch, CACHE_LINE)

    # ---- parts of a row record, from its start

    hidden = 0

    @cached_property
    def cosines(self) -> int:
        """Of the layer's own rotation; those of the model stand one behind the other."""
        offset = self.model.hidden
        for facts in self.model.rotaries:
            if same_rotation(facts, self.geometry.facts):
                break
            offset += 2 * facts.rotary_dim
        return offset

    @property
    def sines(self) -> int:
        return self.cosines + self.geometry.facts.rotary_dim

    @property
    def mask(self) -> int:
        """Of the last blocks that rows see; those of the model without a window, then with each of its windows."""
        window = self.geometry.facts.window
        full = self.model.hidden + self.model.rotary_words
        if window is None:
            return full
        return full + (2 + 2 * self.model.windows.index(window)) * self._mask_words

    @property
    def first_mask(self) -> int:
        """Of the first blocks that rows see through the layer's window."""
        return self.mask - self._mask_words

    @property
    def _mask_words(self) -> int:
        return self.shape.mask_blocks * ATTENTION_BLOCK

    @property
    def record_words(self) -> int:
        """The part the host writes."""
        masks = 1 + 2 * len(self.model.windows)
        return self.model.hidden + self.model.rotary_words + masks * self._mask_words

    @property
    def embedding(self) -> int:
        return round_up(self.record_words, CACHE_LINE)

    @cached_property
    def has_inputs(self) -> bool:
        """Whether some layers have inputs of their own."""
        return any(geometry.facts.input_size for geometry in self._kinds)

    @property
    def qkv(self) -> int:
        return self.embedding + (self.model.hidden if self.has_inputs else 0)

    @property
    def gate_up(self) -> int:
        return self.qkv

    @cached_property
    def qk_heads(self) -> int:
        wide = self._most(
            lambda geometry: max(_inputs(geometry), 2 * geometry.facts.intermediate_size, _result(geometry))
        )
        return round_up(self.qkv + wide, CACHE_LINE)

    @property
    def result(self) -> int:
        """Of a half of the layer, where it is normed before it is added."""
        return self.qkv

    @property
    def input_gate(self) -> int:
        return self.qkv

    @property
    def input(self) -> int:
        """The layer's own input, and the way to it."""
        return self.qkv + self.geometry.input

    @property
    def v_heads(self) -> int:
        return self.qk_heads + self._most(lambda geometry: geometry.num_qk_heads * geometry.head)

    @property
    def attention(self) -> int:
        return self.v_heads + self._most(lambda geometry: geometry.num_own_kv_heads * geometry.head)

    @property
    def mlp(self) -> int:
        """Input of the down projection: the gate's own words where it fills whole blocks."""
        if self.geometry.mlp == self.geometry.facts.intermediate_size:
            return self.gate_up
        return self.attention + self._most(lambda geometry: geometry.attention)

    @cached_property
    def row_stride(self) -> int:
        end = self.attention + self._most(lambda geometry: geometry.attention)
        return end + self._most(_padded_mlp) + CACHE_LINE

    @cached_property
    def stale_padding(self) -> tuple[tuple[int, int], ...]:
        """Parts (start, size) whose padding layers of another kind write, so that this kind has to clear it first."""
        geometry, facts = self.geometry, self.geometry.facts
        others = self._kinds
        parts = []
        if any(other.facts.head_dim != facts.head_dim for other in others) and geometry.head > facts.head_dim:
            parts.append((self.qk_heads, self.attention - self.qk_heads))
        if any(other.attention_size > geometry.attention_size for other in others) and geometry.pads_attention:
            parts.append((self.attention, geometry.attention))
        if any(other.facts.intermediate_size > facts.intermediate_size for other in others) and _padded_mlp(geometry):
            parts.append((self.mlp, geometry.mlp))
        return tuple(parts)

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


def _padded_mlp(geometry: LayerGeometry) -> int:
    """Words of the down projection's input where it does not stand in the gate's."""
    return 0 if geometry.mlp == geometry.facts.intermediate_size else geometry.mlp


def _inputs(geometry: LayerGeometry) -> int:
    """The input projection, and room for a product of q, k and v with a tap."""
    return geometry.qkv + (geometry.facts.conv_channels if geometry.facts.delta else 0)


def _num_normed_heads(geometry: LayerGeometry) -> int:
    """Heads of a row that are normed at once, and at least the row itself."""
    delta = geometry.facts.delta
    return max(geometry.num_qk_heads, 1, *((2 * delta.num_key_heads, delta.num_value_heads) if delta else ()))


def _result(geometry: LayerGeometry) -> int:
    """Words of results that stand where the input projection's and the gate's did."""
    names = geometry.facts.names
    normed = geometry.facts.hidden_size if names.after_attention or names.after_mlp else 0
    return max(normed, geometry.facts.hidden_size, 2 * geometry.input) if geometry.facts.input_size else normed


def most_rows(geometry: Geometry, machine: MachineConfig) -> int:
    """The most rows a step can have on a machine, whatever their kinds; ProgramError when not even one fits."""
    limit = min(machine.act_rows, machine.mcols)
    if geometry.facts.formats.paired:
        # PAIR takes two rows of the machine for each of ours; the same for all shapes, so that sums are the same too.
        limit //= 2
    for rows in range(limit, 0, -1):
        try:
            for prefill_rows in range(rows + 1):
                TmemLayout(geometry, Shape(prefill_rows, rows - prefill_rows, rows), machine)
            return rows
        except ProgramError:
            if rows == 1:
                raise
    raise ProgramError(f"the {machine.name} machine has no rows")
