"""What the host writes before a run: each row's hidden state, angles and mask, and each segment's addresses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.models.facts import LayerFacts
from npuserve.program.dram import WORDS_PER_SEGMENT, DramLayout, KvLayout
from npuserve.program.embedding import widen
from npuserve.program.geometry import ATTENTION_BLOCK, WORD
from npuserve.program.kernels.registers import SegmentWord
from npuserve.program.layer_inputs import LayerInputs
from npuserve.program.rotation import Rotation
from npuserve.program.tmem import Shape

VISIBLE, HIDDEN = np.float32(-0.0), np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one slot."""

    slot: int
    position: int
    num_rows: int

    @property
    def full_blocks(self) -> int:
        """Attention blocks that every row sees whole."""
        return (self.position + 1) // ATTENTION_BLOCK

    @property
    def masked_blocks(self) -> int:
        return (self.position + self.num_rows - 1) // ATTENTION_BLOCK + 1 - self.full_blocks


Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What segments see, [segments] each: masked attention blocks from `first` on, those that all rows see whole from
    `full` on, and from `last` on masked ones again."""

    first: Numbers
    full: Numbers
    last: Numbers


def visible_blocks(positions: Numbers, counts: Numbers, window: int | None) -> Blocks:
    """Of segments of `counts` rows from `positions` on, [segments] both, each of whose rows sees `window` positions."""
    whole = (positions + 1) // ATTENTION_BLOCK
    if window is None:
        zeros = np.zeros_like(whole)
        return Blocks(zeros, zeros, whole)
    first = np.maximum(positions - window + 1, 0) // ATTENTION_BLOCK
    last_begins_at = np.maximum(positions + counts - window, 0)
    full = np.minimum(-(-last_begins_at // ATTENTION_BLOCK), whole)
    return Blocks(first, np.maximum(full, first), np.maximum(whole, first))


def segments_of(rows: Sequence[Row]) -> list[Segment]:
    """Rows grouped by slot, in order; ValueError when a slot's rows are not consecutive and together."""
    segments: list[Segment] = []
    for row in rows:
        last = segments[-1] if segments else None
        if last is not None and last.slot == row.slot:
            if row.position != last.position + last.num_rows:
                raise ValueError(f"slot {row.slot}: position {row.position} does not follow its rows before")
            segments[-1] = Segment(last.slot, last.position, last.num_rows + 1)
        else:
            segments.append(Segment(row.slot, row.position, 1))
    if len({segment.slot for segment in segments}) < len(segments):
        raise ValueError("the rows of one slot do not stand together")
    return segments


class StepTable:
    """Encodes steps for one model: its embedding, and the layers' own inputs where it has such."""

    def __init__(
        self, dram: DramLayout, embedding: NDArray[np.generic], layer_inputs: LayerInputs | None = None
    ) -> None:
        self._dram, self._embedding, self._layer_inputs = dram, embedding, layer_inputs
        facts = dram.geometry.facts
        self._rotation = Rotation(facts.hidden_size) if facts.rotated else None
        rotations = [_angles(facts, dram.geometry.positions) for facts in dram.geometry.rotaries]
        self._angles = np.concatenate(rotations, axis=1) if rotations else None
        self._segment_words = [_SegmentWords(dram, kv) for kv in dram.kv_kinds]
        layers = range(facts.num_layers)
        self._layer_kinds = np.array([facts.kind_of(layer) for layer in layers])
        self._layer_starts = np.zeros((facts.num_layers, 1, WORDS_PER_SEGMENT), np.int64)
        for layer in layers:
            self._layer_starts[layer, 0, : SegmentWord.FULL_BLOCKS] = dram.kv_starts[facts.cache_of(layer)]
        self._columns = np.arange(2 * ATTENTION_BLOCK)

    def rows(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        masks_from: NDArray[np.int64],
        shape: Shape,
        segments: Sequence[Segment] = (),
    ) -> NDArray[np.uint8]:
        """The row records, bytes, in step order. `masks_from` is each row's first position that has a mask.

        Masks of windows follow from the segments, which are not needed where no layer has one.
        """
        geometry = self._dram.geometry
        size, scale = geometry.facts.hidden_size, np.float32(geometry.facts.embedding_scale)
        at = geometry.hidden + geometry.rotary_words
        columns = shape.mask_blocks * ATTENTION_BLOCK
        table = np.zeros((len(tokens), at + (1 + 2 * len(geometry.windows)) * columns), np.float32)
        table[:, :size] = self._hidden(tokens) * scale
        if self._angles is not None:
            table[:, geometry.hidden : at] = self._angles[positions]
        offsets = self._columns[None, :columns]
        visible = offsets <= (positions - masks_from)[:, None]
        table[:, at : at + columns] = np.where(visible, VISIBLE, HIDDEN)
        for window in geometry.windows:
            _, begins, counts = _columns(segments)
            blocks = visible_blocks(begins, counts, window)
            for starts in (blocks.first, blocks.last):
                at += columns
                seen = np.repeat(starts, counts)[:, None] * ATTENTION_BLOCK + offsets
                visible = (seen <= positions[:, None]) & (seen > positions[:, None] - window)
                table[:, at : at + columns] = np.where(visible, VISIBLE, HIDDEN)
        return table.view(np.uint8).reshape(-1)

    def layer_inputs(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The layers' own inputs, bytes, [layers][rows][input_size] fp32; None where the model has none."""
        if self._layer_inputs is None:
            return None
        facts = self._dram.geometry.facts
        rows = self._layer_inputs.rows(tokens) * np.float32(facts.input_scale * math.sqrt(0.5))
        by_layer = rows.reshape(len(tokens), facts.num_layers, facts.input_size).transpose(1, 0, 2)
        return np.ascontiguousarray(by_layer).view(np.uint8).reshape(-1)

    def _hidden(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """The embedding in the basis of the image."""
        rows = widen(self._embedding[tokens])
        return self._rotation.rows(rows) if self._rotation else rows

    def segments(self, segments: Sequence[Segment]) -> NDArray[np.uint8]:
        """The segment words of every layer, bytes, [layers][segments][16]."""
        slots, positions, counts = _columns(segments)
        kinds = np.array([words.of(slots, positions, counts) for words in self._segment_words])
        words: NDArray[np.uint32] = (kinds[self._layer_kinds] + self._layer_starts).astype(np.uint32)
        return words.view(np.uint8).reshape(-1)


class _SegmentWords:
    """The words of segments in a kind of layer whose cache begins where the slot does.

    Addresses are a constant and multiples of the slot, the position and the positions before the first block.
    """

    def __init__(self, dram: DramLayout, kv: KvLayout) -> None:
        self._window = kv.geometry.facts.window
        self._base, self._per_slot, self._per_position, self._per_skipped = np.zeros((4, WORDS_PER_SEGMENT), np.int64)
        parts = {
            (SegmentWord.KEYS, SegmentWord.WRITE_KEYS): (0, kv.k_row),
            (SegmentWord.KEY_SCALES, SegmentWord.WRITE_KEY_SCALES): (kv.k_scales, kv.k_scale_row),
            (SegmentWord.VALUES, SegmentWord.WRITE_VALUES): (kv.values, 1),
            (SegmentWord.VALUE_SCALES, SegmentWord.WRITE_VALUE_SCALES): (kv.v_scales, WORD),
        }
        for (read, write), (start, stride) in parts.items():
            self._base[[read, write]] = dram.slots + start
            self._per_skipped[read] = self._per_position[write] = stride
            self._per_slot[[read, write]] = dram.slot_stride
        self._base[SegmentWord.STATE] = dram.slots + kv.state
        self._per_slot[SegmentWord.STATE] = dram.slot_stride

    def of(self, slots: Numbers, positions: Numbers, counts: Numbers) -> Numbers:
        """[segments, 16] of segments of `counts` rows from `positions` on in `slots`."""
        blocks = visible_blocks(positions, counts, self._window)
        words: Numbers = (
            self._base
            + slots[:, None] * self._per_slot
            + positions[:, None] * self._per_position
            + (blocks.first * ATTENTION_BLOCK)[:, None] * self._per_skipped
        )
        words[:, SegmentWord.HAS_STATE] = positions > 0
        words[:, SegmentWord.IS_NEW] = positions == 0
        words[:, SegmentWord.FIRST_BLOCKS] = blocks.full - blocks.first
        words[:, SegmentWord.FULL_BLOCKS] = blocks.last - blocks.full
        words[:, SegmentWord.MASKED_BLOCKS] = (positions + counts - 1) // ATTENTION_BLOCK + 1 - blocks.last
        return words


def _columns(segments: Sequence[Segment]) -> tuple[Numbers, Numbers, Numbers]:
    """Slots, positions and numbers of rows."""
    table = np.array([(segment.slot, segment.position, segment.num_rows) for segment in segments], np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _angles(facts: LayerFacts, num_positions: int) -> NDArray[np.float32]:
    """[positions, 2 * rotary_dim]: cosines twice, then sines negated and as they are."""
    angles = np.arange(num_positions)[:, None] * facts.inverse_frequencies[None, :]
    cosines, sines = np.cos(angles) * facts.rope_gain, np.sin(angles) * facts.rope_gain
    return np.concatenate([cosines, cosines, -sines, sines], axis=1).astype(np.float32)
