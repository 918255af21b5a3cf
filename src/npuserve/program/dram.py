"""Where everything stands in card memory.

    0                 layer 0: vectors (fp32), then per matrix its rows and their scales
    layer_stride      layer 1 …
                      directory of the layers, where they are of several kinds
                      final norm, head rows, head scales
    image_bytes       step table: row records, then the layers' segment words
                      the layers' own inputs, fp32 [layers, rows of the step, input_size]
                      logits, fp32 [max_rows, vocab]
                      KV slots: [slot][kind][layer of the kind] of K rows, K scales, V scales, V^T rows, state

All offsets and sizes are bytes.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import ProgramError
from npuserve.program.geometry import ATTENTION_BLOCK, BLOCK, WORD, Geometry, LayerGeometry, round_up
from npuserve.quant.formats import INT8, WeightFormat
from npuserve.quant.four_bit_rows import FourBitRows

PAGE = 4096
BEAT = 64
WORDS_PER_SEGMENT = 16
DIRECTORY_WORDS = 16
MAX_KINDS = DIRECTORY_WORDS - 1
ADDRESS_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix: n rows of codes at `weights`, n rows of scale words at `scales`; `paired` has MM use PAIR."""

    weights: int
    scales: int
    n: int
    blocks: int
    format: WeightFormat = INT8
    paired: bool = False

    @property
    def row_stride(self) -> int:
        return self.format.row_bytes(self.blocks)

    @property
    def scale_stride(self) -> int:
        return self.format.scale_stride(self.blocks, paired=self.paired)

    def pack(self, weights: NDArray[np.float32]) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Some rows of it, float32 [rows, K], as they stand in memory: codes and scales."""
        codes, scales = self.format.pack(weights)
        return codes, self._padded(scales)

    def take_over(self, rows: FourBitRows) -> tuple[NDArray[np.generic], NDArray[np.generic], int]:
        """The same for rows of a kind that the format takes over, and how many blocks it could not keep."""
        taken = self.format.take_over[rows.kind](rows)
        return taken.rows, self._padded(taken.scales), taken.num_rounded

    def _padded(self, scales: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.pad(scales, ((0, 0), (0, self.scale_stride // WORD - scales.shape[1])))

    @property
    def end(self) -> int:
        return round_up(self.scales + self.n * self.scale_stride, BLOCK)


def matrix_at(offset: int, n: int, columns: int, kept: WeightFormat = INT8, *, paired: bool = False) -> Matrix:
    """A matrix placed at a multiple of 128; only 4-bit ones are ever paired."""
    blocks = columns // BLOCK
    scales = round_up(offset + n * kept.row_bytes(blocks), BLOCK)
    return Matrix(offset, scales, n, blocks, kept, paired and kept.is_four_bit)


@dataclass(frozen=True, slots=True)
class Vectors:
    """fp32 vectors of a layer, offsets in words from the first; `size` in words. LD fetches them at once."""

    input_norm: int
    post_norm: int
    q_norm: int
    k_norm: int
    qkv_bias: int
    o_bias: int
    taps: int
    taps_bias: int
    dt_bias: int
    decay: int
    delta_norm: int
    after_attention: int
    after_mlp: int
    inputs_norm: int
    after_input: int
    scalar: int
    size: int


@dataclass(frozen=True)
class LayerLayout:
    """Offsets from the start of a layer's part of the image."""

    geometry: LayerGeometry

    @cached_property
    def vectors(self) -> Vectors:
        geometry, facts, names = self.geometry, self.geometry.facts, self.geometry.facts.names
        hidden = facts.hidden_size
        sizes = {
            "input_norm": geometry.hidden,
            "post_norm": geometry.hidden,
            "q_norm": facts.head_dim if facts.qk_norm else 0,
            "k_norm": facts.head_dim if facts.qk_norm and facts.owns_cache else 0,
            "qkv_bias": geometry.qkv if facts.qkv_bias else 0,
            "o_bias": hidden if facts.o_bias else 0,
            "taps": facts.conv_taps * facts.conv_channels,
            "taps_bias": hidden if facts.conv_taps and facts.qkv_bias else 0,
            "dt_bias": facts.delta.num_value_heads if facts.delta else 0,
            "decay": facts.delta.num_value_heads if facts.delta else 0,
            "delta_norm": facts.delta.value_dim if facts.delta else 0,
            "after_attention": hidden if names.after_attention else 0,
            "after_mlp": hidden if names.after_mlp else 0,
            "inputs_norm": facts.input_size,
            "after_input": hidden if facts.input_size else 0,
            "scalar": 1 if names.scalar else 0,
        }
        *starts, size = accumulate(sizes.values(), initial=0)
        return Vectors(**dict(zip(sizes, starts, strict=True)), size=size)

    @cached_property
    def qkv(self) -> Matrix:
        start = round_up(self.vectors.size * WORD, BLOCK)
        return self._matrix(start, self.geometry.qkv, self.geometry.hidden, self.geometry.facts.formats.mixer)

    @cached_property
    def o(self) -> Matrix:
        facts = self.geometry.facts
        return self._matrix(self.qkv.end, facts.hidden_size, self.geometry.attention, facts.formats.mixer)

    @cached_property
    def gate_up(self) -> Matrix:
        facts = self.geometry.facts
        return self._matrix(self.o.end, 2 * facts.intermediate_size, self.geometry.hidden, facts.formats.gate_up)

    @cached_property
    def down(self) -> Matrix:
        facts = self.geometry.facts
        return self._matrix(self.gate_up.end, facts.hidden_size, self.geometry.mlp, facts.formats.down)

    @cached_property
    def inputs(self) -> Matrix:
        """The layer's share of the projection of the embedding."""
        return self._matrix(
            self.down.end, self.geometry.facts.input_size, self.geometry.hidden, self.geometry.facts.formats.inputs
        )

    @cached_property
    def input_gate(self) -> Matrix:
        return self._matrix(
            self.inputs.end, self.geometry.facts.input_size, self.geometry.hidden, self.geometry.facts.formats.inputs
        )

    @cached_property
    def input_projection(self) -> Matrix:
        return self._matrix(
            self.input_gate.end,
            self.geometry.facts.hidden_size,
            self.geometry.input,
            self.geometry.facts.formats.inputs,
        )

    @cached_property
    def stride(self) -> int:
        return self.input_projection.end

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        mixer_and_mlp = self.qkv, self.o, self.gate_up, self.down
        return (*mixer_and_mlp, self.inputs, self.input_gate, self.input_projection)

    def _matrix(self, offset: int, n: int, columns: int, kept: WeightFormat) -> Matrix:
        return matrix_at(offset, n, columns, kept, paired=self.geometry.facts.formats.paired)


@dataclass(frozen=True)
class KvLayout:
    """One slot's keys and values of one layer that owns them, and its state where it is recurrent.

    Heads follow each other in each of the four parts of keys and values.
    """

    geometry: LayerGeometry

    @cached_property
    def k_row(self) -> int:
        """Bytes of one position's key of one head."""
        return self.geometry.head

    @cached_property
    def k_head(self) -> int:
        return self.geometry.positions * self.k_row

    @cached_property
    def k_scale_row(self) -> int:
        return self.geometry.head // BLOCK * WORD

    @cached_property
    def k_scale_head(self) -> int:
        return self.geometry.positions * self.k_scale_row

    @cached_property
    def k_scales(self) -> int:
        return self.geometry.facts.num_kv_heads * self.k_head

    @cached_property
    def v_scales(self) -> int:
        return self.k_scales + self.geometry.facts.num_kv_heads * self.k_scale_head

    @cached_property
    def v_scale_head(self) -> int:
        return self.geometry.positions * WORD

    @cached_property
    def v_head(self) -> int:
        return self.geometry.value_rows * self.geometry.v_row_stride_bytes

    @cached_property
    def values(self) -> int:
        return round_up(self.v_scales + self.geometry.facts.num_kv_heads * self.v_scale_head, BLOCK)

    @cached_property
    def state(self) -> int:
        return round_up(self.values + self.geometry.facts.num_kv_heads * self.v_head, BLOCK)

    @cached_property
    def state_bytes(self) -> int:
        """In whole blocks."""
        return round_up(self.geometry.state * WORD, BLOCK)

    @cached_property
    def stride(self) -> int:
        return self.state + self.state_bytes if self.geometry.facts.owns_cache else 0


def slots_of(num_slots: int, context_length: int) -> str:
    """`1 slot of 2048`, `8 slots of 2048`."""
    return f"{num_slots} slot{'' if num_slots == 1 else 's'} of {context_length}"


@dataclass(frozen=True)
class DramLayout:
    """The whole map for a model, a number of slots and the most rows a step may have."""

    geometry: Geometry
    num_slots: int
    max_rows: int

    def __post_init__(self) -> None:
        if len(self.kinds) > MAX_KINDS:
            raise ProgramError(f"the layers are of {len(self.kinds)} kinds; programs have {MAX_KINDS} at most")
        if self.size > ADDRESS_SPACE:
            raise ProgramError(
                f"{self.image_bytes / (1 << 30):.2f} GiB of weights and {self.contexts} tokens need"
                f" {self.size / (1 << 30):.2f} GiB, but the card addresses 4; use fewer --slots, a"
                " smaller --cap or a --wformat with fewer bits"
            )

    @property
    def contexts(self) -> str:
        """Slots and their length, as messages say it."""
        return slots_of(self.num_slots, self.geometry.capacity)

    @cached_property
    def kinds(self) -> tuple[LayerLayout, ...]:
        """Of each kind of layer."""
        return tuple(LayerLayout(geometry) for geometry in self.geometry.kinds)

    @cached_property
    def layer(self) -> LayerLayout:
        """Of the usual layer."""
        return self.kinds[0]

    @cached_property
    def kv_kinds(self) -> tuple[KvLayout, ...]:
        """Of each kind of layer."""
        return tuple(KvLayout(geometry) for geometry in self.geometry.kinds)

    @cached_property
    def kv(self) -> KvLayout:
        """Of the usual layer."""
        return self.kv_kinds[0]

    @cached_property
    def layer_starts(self) -> tuple[int, ...]:
        """Where each layer's part begins, and where the last one ends."""
        kinds = map(self.geometry.facts.kind_of, range(self.geometry.facts.num_layers))
        return tuple(accumulate((self.kinds[kind].stride for kind in kinds), initial=0))

    @cached_property
    def kv_starts(self) -> tuple[int, ...]:
        """Where each layer's cache begins in a slot: layers of one kind stand together, one stride apart."""
        starts = [0] * self.geometry.facts.num_layers
        end = 0
        for kind, kv in enumerate(self.kv_kinds):
            for layer in self.geometry.layers_of(kind):
                starts[layer] = end
                end += kv.stride
        return (*starts, end)

    @cached_property
    def directory(self) -> int:
        """Per layer DIRECTORY_WORDS words: its address, then for each kind 1 if it is of that kind, else 0."""
        return self.layer_starts[-1]

    @cached_property
    def directory_bytes(self) -> int:
        """Nothing where all layers are of one kind."""
        if len(self.kinds) == 1:
            return 0
        return round_up(self.geometry.facts.num_layers * DIRECTORY_WORDS * WORD, BLOCK)

    @cached_property
    def final_norm(self) -> int:
        return self.directory + self.directory_bytes

    @cached_property
    def head(self) -> Matrix:
        start = round_up(self.final_norm + self.geometry.hidden * WORD, BLOCK)
        facts = self.geometry.facts
        return matrix_at(start, facts.vocab_size, self.geometry.hidden, facts.head_format, paired=facts.formats.paired)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """One layer's of each kind, and the head."""
        return (*(matrix for kind in self.kinds for matrix in kind.matrices), self.head)

    @cached_property
    def image_bytes(self) -> int:
        return round_up(self.head.end, PAGE)

    @cached_property
    def row_record_words(self) -> int:
        """What the host writes for one row at most: hidden state, cosines, sines, and two blocks of each mask."""
        masks = 1 + 2 * len(self.geometry.windows)
        return self.geometry.hidden + self.geometry.rotary_words + masks * 2 * ATTENTION_BLOCK

    @cached_property
    def rows(self) -> int:
        return self.image_bytes

    @cached_property
    def segments(self) -> int:
        return round_up(self.rows + self.max_rows * self.row_record_words * WORD, PAGE)

    @cached_property
    def inputs(self) -> int:
        words = self.geometry.facts.num_layers * (1 + self.max_rows) * WORDS_PER_SEGMENT
        return round_up(self.segments + words * WORD, PAGE)

    @cached_property
    def logits(self) -> int:
        words = self.geometry.facts.num_layers * self.max_rows * self.geometry.facts.input_size
        return round_up(self.inputs + words * WORD, PAGE)

    @cached_property
    def slots(self) -> int:
        return round_up(self.logits + self.max_rows * self.geometry.facts.vocab_size * WORD, PAGE)

    @cached_property
    def slot_stride(self) -> int:
        return round_up(self.kv_starts[-1], PAGE)

    @cached_property
    def programs(self) -> int:
        return self.slots + self.num_slots * self.slot_stride

    @cached_property
    def size(self) -> int:
        """Bytes in all, with room for one program behind the slots."""
        return self.programs + (2 << 20)
